package hooks

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"lemma"
	"lemma/address"
	"lemma/events"
	"lemma/sender"
	"lemma/sender/gateway"
	"lemma/sender/wire"
)

// ProviderEvents!UnknownAllKept. The format gives each event an id, so a receiver
// without ids stands for a carrier that has none.
func TestEventsWithoutAnIDAreAllKept(t *testing.T) {
	b := setup(t)
	h := b.hooks()
	a, err := h.accounts.find(t.Context(), "http", b.provider)
	b.Must(err)
	for range 3 {
		b.Must(h.record(t.Context(), a, b.provider, []events.Report{{Notification: b.notification(1), Type: events.TypeOpened}}))
	}
	if n := len(b.rows()); n != 3 || value(h.metrics.noID.WithLabelValues("http")) != 3 {
		t.Errorf("%d are stored", n)
	}
}

// An event about an address names no notification, and is not counted as one that does
// not match. One that names an unknown notification is, also with an address.
func TestUnmatchedEventsAreCounted(t *testing.T) {
	b := setup(t)
	h := b.hooks()
	b.Must(b.receive(h, "stop", `{"type":"unsubscribed","address":"ada@shop.example"}`))
	b.Must(b.receive(h, "ours", fmt.Sprintf(`{"type":"delivered","notification_id":%q}`, b.notification(1))))
	b.Must(b.receive(h, "other", fmt.Sprintf(`{"type":"delivered","notification_id":%q}`,
		lemma.FormatNotificationID(lemma.NewID(), keyOf(1)))))
	b.Must(b.receive(h, "dropped", fmt.Sprintf(`{"type":"complained","notification_id":%q,"address":"bob@shop.example"}`,
		lemma.FormatNotificationID(lemma.NewID(), keyOf(1)))))
	b.Must(b.receive(h, "test", fmt.Sprintf(`{"type":"delivered","notification_id":%q}`,
		lemma.FormatID(lemma.PrefixNotification, lemma.NewID()))))
	if n := value(h.metrics.unmatched.WithLabelValues("http")); n != 2 {
		t.Errorf("%v do not match", n)
	}
}

// Events without an id are kept up to a bound for each type, attempt and notification.
func TestAFloodOfEventsWithoutAnID(t *testing.T) {
	b := setup(t)
	h := b.hooks()
	a, err := h.accounts.find(t.Context(), "http", b.provider)
	b.Must(err)
	one := events.Report{Notification: b.notification(1), Type: events.TypeRejected}
	for range 3 {
		b.Must(h.record(t.Context(), a, b.provider, slices.Repeat([]events.Report{one}, 60)))
	}
	if n := value(h.metrics.floods.WithLabelValues("http")); n != 80 {
		t.Errorf("%v in the flood", n)
	}
	b.WantCount(100, `select count(*) from provider_events`)
	b.WantCount(100, `select count(*) from event_queue`)
	second, other, of := one, one, one
	second.Attempt, other.Notification, of.Type = 2, b.notification(2), events.TypeDelivered
	b.Must(h.record(t.Context(), a, b.provider, []events.Report{second, other, of, one}))
	b.WantCount(103, `select count(*) from provider_events`)
}

// An event about an address that cannot be read, and about no notification of the workspace,
// has no effect. It is stored, counted by its reason and logged, at most once a minute.
func TestAddressesThatCannotBeReadAreCounted(t *testing.T) {
	b := setup(t)
	var log bytes.Buffer
	h := b.hooks()
	h.log = slog.New(slog.NewTextHandler(&log, nil))
	a, err := h.accounts.find(t.Context(), "http", b.provider)
	b.Must(err)
	a.channel = lemma.SMS
	other := lemma.FormatNotificationID(lemma.NewID(), keyOf(1))
	b.Must(h.record(t.Context(), a, b.provider, []events.Report{
		{ID: "1", CarrierID: "SM1", Address: "messenger:1", Type: events.TypeUnsubscribed},
		{ID: "2", Address: "030 123456", Type: events.TypeUnsubscribed},
		{ID: "3", Address: "030 123456", Notification: other, Type: events.TypeBounced},
		{ID: "4", Address: "030 123456", Notification: b.notification(1), Type: events.TypeBounced}, // it has another address
		{ID: "5", Address: "004930123456", Type: events.TypeUnsubscribed},
	}))
	b.Must(h.record(t.Context(), a, b.provider, []events.Report{{ID: "1", Address: "messenger:1", Type: events.TypeUnsubscribed}}))
	for reason, want := range map[string]float64{address.Invalid: 1, address.NoCountryCode: 2} {
		if n := value(h.metrics.unreadable.WithLabelValues("http", reason)); n != want {
			t.Errorf("%s: %v", reason, n)
		}
	}
	if n := value(h.metrics.unmatched.WithLabelValues("http")); n != 0 {
		t.Errorf("%v do not match", n)
	}
	if text := log.String(); strings.Count(text, "cannot be read") != 1 || strings.Contains(text, "messenger") ||
		!strings.Contains(text, "event=1 carrier_id=SM1") || !strings.Contains(text, "reason=invalid_address") {
		t.Errorf("logged: %s", text)
	}
	b.WantCount(5, `select count(*) from provider_events`)
	b.WantCount(2, `select count(*) from event_queue`)
	b.WantCount(1, `select count(*) from event_queue where channel = 'sms' and address = '+4930123456'`)
	b.WantCount(1, `select count(*) from event_queue where key is not null and channel is null and address is null`)
}

// A counter that begins with its first event has no increase, by which its alert is.
func TestUnreadableAddressesAreCountedFromZero(t *testing.T) {
	t.Parallel()
	r := prometheus.NewRegistry()
	New(Deps{Kinds: []sender.Kind{gateway.Kind(wire.Operator{}), {Name: "silent"}}, Metrics: NewMetrics(r)})
	all, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range all {
		if family.GetName() == "lemma_hooks_unreadable_addresses_total" && len(family.GetMetric()) == 2 {
			return
		}
	}
	t.Error("the counters are missing")
}

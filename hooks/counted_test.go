package hooks

import (
	"fmt"
	"slices"
	"testing"

	"lemma"
	"lemma/events"
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
// not match.
func TestUnmatchedEventsAreCounted(t *testing.T) {
	b := setup(t)
	h := b.hooks()
	b.Must(b.receive(h, "stop", `{"type":"unsubscribed","address":"ada@shop.example"}`))
	b.Must(b.receive(h, "ours", fmt.Sprintf(`{"type":"delivered","notification_id":%q}`, b.notification(1))))
	b.Must(b.receive(h, "other", fmt.Sprintf(`{"type":"delivered","notification_id":%q}`,
		lemma.FormatNotificationID(lemma.NewID(), keyOf(1)))))
	b.Must(b.receive(h, "test", fmt.Sprintf(`{"type":"delivered","notification_id":%q}`,
		lemma.FormatID(lemma.PrefixNotification, lemma.NewID()))))
	if n := value(h.metrics.unmatched.WithLabelValues("http")); n != 1 {
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

package deliveries

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"lemma"
	"lemma/events"
	"lemma/notifications"
	"lemma/suppression"
)

// unsuppressed is how many events are counted that suppressed nothing, for a reason.
func (b *bundle) unsuppressed(reason string) float64 {
	b.T.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(b.metrics.unsuppressed.WithLabelValues(reason))
	all, err := r.Gather()
	b.Must(err)
	return all[0].GetMetric()[0].GetCounter().GetValue()
}

// An event of a recipient without a notification suppresses by its address.
func TestAnEventWithAnAddress(t *testing.T) {
	b := setup(t)
	var log bytes.Buffer
	b.log = slog.New(slog.NewTextHandler(&log, nil))
	b.receive(events.Report{ID: "1", Address: "P1@Shop.example", Type: events.TypeUnsubscribed, OccurredAt: at(0)},
		events.Report{ID: "2", Address: "nonsense", Type: events.TypeUnsubscribed, OccurredAt: at(0)},
		events.Report{ID: "3", Address: "p2@shop.example", Type: events.TypeDelivered, OccurredAt: at(0)})
	b.apply()
	if diff := cmp.Diff([]string{"email p1@shop.example unsubscribed"}, b.list(causes)); diff != "" {
		t.Error(diff)
	}
	if n := b.unsuppressed("invalid_address"); n != 1 || strings.Count(log.String(), "are not suppressed") != 1 {
		t.Errorf("%v invalid addresses are counted, and logged: %s", n, &log)
	}
}

// An event keeps its channel when its provider is deleted before it is applied.
func TestAnEventOfADeletedProvider(t *testing.T) {
	b := setup(t)
	_, err := events.Receive(t.Context(), b.Pool, b.Workspace, []events.Received{{ProviderID: lemma.NewID(), Channel: lemma.SMS,
		Report: events.Report{ID: "1", Address: "+4930123456", Type: events.TypeUnsubscribed, OccurredAt: at(0)}}})
	b.Must(err)
	b.apply()
	if diff := cmp.Diff([]string{"sms +4930123456 unsubscribed"}, b.list(causes)); diff != "" {
		t.Error(diff)
	}
}

// A complaint, a bounce or an unsubscription about a notification whose month was dropped suppresses the
// reported address, whether it was dropped before the event came or before it was applied.
func TestAnEventOfADroppedNotification(t *testing.T) {
	b := setup(t)
	kinds := []events.Type{events.TypeComplained, events.TypeUnsubscribed, events.TypeBounced}
	b.receiveFrom(1, kinds)
	b.Exec(`delete from batches where workspace_id = $1`, b.Workspace)
	b.Exec(`delete from notifications where workspace_id = $1`, b.Workspace)
	b.receiveFrom(4, kinds)
	b.receive(report(b.origin, 7, events.TypeComplained, at(0))) // without an address
	b.apply()
	want := []string{"email p1@shop.example complaint", "email p2@shop.example unsubscribed", "email p3@shop.example hard_bounce",
		"email p4@shop.example complaint", "email p5@shop.example unsubscribed", "email p6@shop.example hard_bounce"}
	if diff := cmp.Diff(want, b.list(causes)); diff != "" {
		t.Error(diff)
	}
	b.WantCount(0, `select count(*) from event_queue`) // the address is kept nowhere else
}

// receiveFrom receives an event of each type, with the address of its notification, from a
// notification on.
func (b *bundle) receiveFrom(first int, kinds []events.Type) {
	b.T.Helper()
	for i, kind := range kinds {
		r := report(b.origin, first+i, kind, at(0))
		r.Address = address(first + i)
		b.receive(r)
	}
}

// The address of a notification decides while there is one, and not the one that is reported.
func TestAnEventWithAnotherAddress(t *testing.T) {
	b := setup(t)
	r := report(b.origin, 1, events.TypeComplained, at(0))
	r.Address = "other@shop.example"
	b.receive(r)
	b.apply()
	if diff := cmp.Diff([]string{"email p1@shop.example complaint"}, b.list(causes)); diff != "" {
		t.Error(diff)
	}
}

// No text of a report has the address of its notification, or its own if there is none, and those about an
// erased profile have no text.
func TestTextsOfReportsHaveNoAddress(t *testing.T) {
	b := setup(t)
	withTexts := func(r events.Report, address string) events.Report {
		r.Reason, r.CarrierID, r.Detail = "of-"+address, "id-"+strings.ToUpper(address)+"-7", "no "+address+" here"
		return r
	}
	b.Exec(`update notifications set address = 'erased' where workspace_id = $1 and address = $2`, b.Workspace, address(2))
	b.receive(withTexts(report(b.origin, 1, events.TypeDelivered, at(0)), address(1)),
		withTexts(report(b.origin, 2, events.TypeDelivered, at(0)), address(2)),
		withTexts(events.Report{ID: "9", Address: "p9@shop.example", Type: events.TypeUnsubscribed, OccurredAt: at(0)}, "p9@shop.example"))
	want := []string{"", "of- id--7 no  here", "of- id--7 no  here"}
	texts := b.list(`select concat_ws(' ', reason, carrier_id, detail) from provider_events where workspace_id = $1 order by 1`)
	if diff := cmp.Diff(want, texts); diff != "" {
		t.Error(diff)
	}
}

// Each type of report that names its recipient adds a suppression, and no other does.
func TestTypesThatSuppress(t *testing.T) {
	t.Parallel()
	for _, kind := range events.Types {
		if kind.Suppresses() != (causeOf(kind) != "") {
			t.Errorf("%s: %v, %q", kind, kind.Suppresses(), causeOf(kind))
		}
	}
}

// The address of an erased profile is not stored again, when a carrier reports it: it is
// suppressed by its key, as by a link. What replaces it is no address: not even on push, where
// any text can be a token. Without a reported address nothing is suppressed.
func TestAnEventOfAnErasedProfile(t *testing.T) {
	for _, channel := range []lemma.Channel{lemma.Email, lemma.Push} {
		t.Run(string(channel), func(t *testing.T) {
			b := setup(t)
			var log bytes.Buffer
			b.log = slog.New(slog.NewTextHandler(&log, nil))
			b.Exec(`update contents set channel = $2 where workspace_id = $1`, b.Workspace, channel)
			b.Exec(`update batches set status = 'done', sent = size, finished_at = now() where workspace_id = $1`, b.Workspace)
			b.erase(1, 2, 3, 4, 5, 6, 7)
			r := report(b.origin, 1, events.TypeComplained, at(0))
			r.Address, r.Detail = address(1), "from "+address(1)
			_, err := events.Receive(t.Context(), b.Pool, b.Workspace, []events.Received{{ProviderID: b.provider, Channel: channel, Report: r}})
			b.Must(err)
			b.receive(report(b.origin, 7, events.TypeUnsubscribed, at(0)))
			for i := range suppression.SoftBounceLimit {
				b.receive(report(b.origin, 2+i, events.TypeSoftBounced, at(24*60*i)))
			}
			b.apply()
			if n, invalid := b.unsuppressed("no_address"), b.unsuppressed("invalid_address"); n != 1 || invalid != 0 || log.Len() > 0 {
				t.Errorf("%v and %v events are counted; log: %s", n, invalid, &log)
			}
			if diff := cmp.Diff([]string{string(channel) + "  complaint the carrier reported: complained"}, b.list(`
				select concat_ws(' ', channel, address, cause, detail) from suppressions where workspace_id = $1`)); diff != "" {
				t.Error(diff)
			}
			p, err := suppression.New(b.Pool).Preferences(t.Context(), b.Workspace, channel, address(1), uuid.Nil)
			if err != nil || !p.Has(suppression.Complaint) {
				t.Errorf("the address is not suppressed: %+v, %v", p, err)
			}
			b.WantCount(0, `select count(*) from soft_bounces where workspace_id = $1`, b.Workspace)
		})
	}
}

// erase erases the profiles of notifications.
func (b *bundle) erase(all ...int) {
	b.T.Helper()
	var names []notifications.Name
	for _, i := range all {
		names = append(names, notifications.Name{OriginID: b.origin, Key: keyOf(i)})
	}
	b.Must(pgx.BeginFunc(b.T.Context(), b.Pool, func(tx pgx.Tx) error {
		n, _, err := notifications.New(b.Pool).Erase(b.T.Context(), tx, b.Workspace, names, "erased:1")
		if int(n) != len(all) {
			b.T.Errorf("%d notifications are erased", n)
		}
		return err
	}))
}

// Texts of a carrier or of a customer's own service are stored without the address of the
// recipient, and not at all about an erased profile.
func TestTextsHaveNoAddress(t *testing.T) {
	b := setup(t)
	b.Exec(`update notifications set address = 'erased' where key = $1`, keyOf(3))
	var all []events.Report
	for i, text := range []string{"Mailbox FULL", "550 User <P1@Shop.Example> Unknown", "twice p2@shop.example, P2@shop.example",
		"550 p3@shop.example Cleo"} {
		r := report(b.origin, i, events.TypeBounced, at(i))
		r.Detail = text
		all = append(all, r)
	}
	b.receive(all...)
	want := []string{"0 Mailbox FULL", "1 550 User <> Unknown", "2 twice , ", "3"}
	got := b.list(`select concat_ws(' ', n.profile_key, e.detail) from provider_events e join notifications n on n.batch_id = e.batch_id
		and n.ordinal = e.ordinal where e.workspace_id = $1`)
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(want, b.list(`select concat_ws(' ', n.profile_key, e.detail) from event_queue e join notifications n on n.key = e.key
		where e.workspace_id = $1`)); d != "" {
		t.Error(d)
	}
}

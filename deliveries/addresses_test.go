package deliveries

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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

// The address of an erased profile is not stored again, when a carrier names it, and what
// replaces it is no address: not even on push, where any text can be a token.
func TestAnEventOfAnErasedProfile(t *testing.T) {
	for _, channel := range []lemma.Channel{lemma.Email, lemma.Push} {
		t.Run(string(channel), func(t *testing.T) {
			b := setup(t)
			var log bytes.Buffer
			b.log = slog.New(slog.NewTextHandler(&log, nil))
			b.Exec(`update contents set channel = $2 where workspace_id = $1`, b.Workspace, channel)
			b.Exec(`update batches set status = 'done', sent = size, finished_at = now() where workspace_id = $1`, b.Workspace)
			b.erase(1, 2, 3, 4, 5, 6)
			r := report(b.origin, 1, events.TypeComplained, at(0))
			r.Address = address(1)
			b.receive(r)
			for i := range suppression.SoftBounceLimit {
				b.receive(report(b.origin, 2+i, events.TypeSoftBounced, at(24*60*i)))
			}
			b.apply()
			if n, invalid := b.unsuppressed("no_address"), b.unsuppressed("invalid_address"); n != 1 || invalid != 0 || log.Len() > 0 {
				t.Errorf("%v and %v events are counted; log: %s", n, invalid, &log)
			}
			if got := b.list(causes); len(got) != 0 {
				t.Errorf("suppressed: %v", got)
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

package deliveries

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"lemma"
	"lemma/events"
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

// The address of an erased profile is not stored again, when a carrier names it.
func TestAnEventOfAnErasedProfile(t *testing.T) {
	b := setup(t)
	b.Exec(`update notifications set address = '' where workspace_id = $1 and key = $2`, b.Workspace, keyOf(1))
	r := report(b.origin, 1, events.TypeComplained, at(0))
	r.Address = address(1)
	b.receive(r)
	b.apply()
	if n := b.unsuppressed("no_address"); n != 1 {
		t.Errorf("%v events are counted", n)
	}
	if got := b.list(causes); len(got) != 0 {
		t.Errorf("suppressed: %v", got)
	}
	if diff := cmp.Diff([]string{" complained 1"}, b.list(counts)); diff != "" {
		t.Error(diff)
	}
}

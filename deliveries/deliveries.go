// Package deliveries applies what carriers report about messages: the delivery state
// of notifications, its counts, suppressions, and resolutions of orphaned
// notifications. It guarantees:
//
//   - Each stored event is applied once: the transaction that takes it from the queue
//     has all its effects.
//   - The state of a notification never goes back, so that the order in which events
//     come changes nothing.
//   - An event never changes the status of a notification, and no message is sent
//     because of it.
//
// The states by rank:
//
//	rank  state        events
//	1     delayed      of the same name
//	2     rejected     rejected: the carrier has not accepted it, or has dropped it
//	3     undelivered  soft_bounced, undelivered
//	4     delivered    and opened, clicked
//	5     bounced      of the same name
//	6     complained   of the same name
//
// A bounce adds the suppression hard_bounce, a complaint complaint, and a recipient that
// unsubscribed at the carrier unsubscribed. Package suppression has the rule for soft
// bounces.
package deliveries

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"lemma/events"
	"lemma/loop"
	"lemma/notifications"
	"lemma/queue"
)

// chunk is how many events one transaction applies.
const chunk = 1000

// appliers is of how many workspaces a process applies events at a time.
const appliers = 3

// period is how often the queue is read.
const period = 250 * time.Millisecond

// Deliveries applies events. Any number of processes may.
type Deliveries struct {
	pool    *pgxpool.Pool
	queue   *queue.Queue
	log     *slog.Logger
	metrics *Metrics
}

// New returns Deliveries.
func New(pool *pgxpool.Pool, log *slog.Logger, m *Metrics) *Deliveries {
	if m == nil {
		m = NewMetrics(nil)
	}
	return &Deliveries{pool, queue.New(pool, "event_queue", chunk), log, m}
}

// Metrics count applied events. The names are documented in docs/reference/metrics.md.
type Metrics struct {
	applied, suppressed, resolved prometheus.Counter
	states, unsuppressed          *prometheus.CounterVec
}

// Why an event suppresses no address.
const (
	noAddress      = "no_address"      // that of its notification is erased or dropped, and none is reported
	invalidAddress = "invalid_address" // it cannot be of its channel
)

// NewMetrics registers the metrics; with nil they are not exported.
func NewMetrics(r prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &Metrics{
		applied:    counter("lemma_events_applied_total", "Provider events whose effects were applied."),
		suppressed: counter("lemma_events_suppressions_total", "Suppressions that provider events added."),
		resolved:   counter("lemma_events_resolutions_total", "Orphaned notifications that late evidence resolved."),
		states: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_deliveries_total",
			Help: "Notifications by the delivery state that they reached."}, []string{"state"}),
		unsuppressed: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_events_unsuppressed_total",
			Help: "Bounces, complaints and unsubscribing recipients that suppressed no address, by reason."}, []string{"reason"}),
	}
	for _, reason := range []string{noAddress, invalidAddress} { // a counter that begins with its first event has no increase
		m.unsuppressed.WithLabelValues(reason)
	}
	if r != nil {
		r.MustRegister(m.applied, m.suppressed, m.resolved, m.states, m.unsuppressed)
	}
	return m
}

// Loop applies events until ctx ends, of several workspaces at a time.
func (d *Deliveries) Loop(ctx context.Context) {
	var all sync.WaitGroup
	for range appliers {
		all.Go(func() { loop.Every(ctx, period, d.applyAll, d.logFailed) })
	}
	all.Wait()
}

func (d *Deliveries) logFailed(err error) { d.log.Error("apply provider events", "error", err) }

// applyAll applies events until nothing is left that can be applied now.
func (d *Deliveries) applyAll(ctx context.Context) error {
	for {
		n, err := d.Apply(ctx)
		if err != nil && ctx.Err() == nil {
			d.logFailed(err)
		}
		if n == 0 {
			return ctx.Err()
		}
	}
}

// Apply applies at most one chunk of each workspace and returns how many events these
// were. A workspace that fails does not stop the others, and an event that cannot be
// applied does not stop the others of its workspace.
func (d *Deliveries) Apply(ctx context.Context) (applied int, err error) {
	return d.queue.Each(ctx, func(ctx context.Context, ws uuid.UUID, of queue.Part) (int, error) { return d.applyPart(ctx, ws, of) })
}

func (d *Deliveries) applyPart(ctx context.Context, ws uuid.UUID, of queue.Part) (n int, err error) {
	var t transaction
	err = pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
		t = transaction{tx: tx, ws: ws}
		queued, err := events.Take(ctx, tx, ws, of.Skip, of.Most)
		if n = len(queued); err != nil || n == 0 {
			return err
		}
		return t.apply(ctx, queued)
	})
	if err != nil {
		return 0, err
	}
	d.metrics.applied.Add(float64(n))
	d.metrics.suppressed.Add(float64(t.suppressed))
	d.metrics.resolved.Add(float64(t.resolved))
	d.metrics.unsuppressed.WithLabelValues(noAddress).Add(float64(t.noAddress))
	if t.invalid > 0 {
		d.metrics.unsuppressed.WithLabelValues(invalidAddress).Add(float64(t.invalid))
		d.log.Error("addresses of provider events are invalid and are not suppressed", "workspace_id", ws, "addresses", t.invalid)
	}
	for _, r := range t.raised {
		d.metrics.states.WithLabelValues(r.state).Inc()
	}
	return n, nil
}

// transaction applies a chunk of one workspace.
type transaction struct {
	tx pgx.Tx
	ws uuid.UUID

	raised               []*change
	suppressed, resolved int
	noAddress, invalid   int // events that should suppress an address, and did not
}

func (t *transaction) apply(ctx context.Context, queued []events.Queued) (err error) {
	changes := changesOf(queued)
	if t.raised, err = t.raise(ctx, changes); err != nil {
		return err
	}
	about, err := t.read(ctx, queued, t.raised)
	if err != nil {
		return err
	}
	if err := t.count(ctx, about); err != nil {
		return err
	}
	if err := t.recordEvents(ctx); err != nil {
		return err
	}
	if err := t.suppress(ctx, queued, about); err != nil {
		return err
	}
	var rows []notifications.Row
	for _, q := range queued {
		if q.BatchID.Valid && q.Ordinal != nil {
			rows = append(rows, notifications.Row{OriginID: q.OriginID.UUID, BatchID: q.BatchID.UUID, Ordinal: *q.Ordinal})
		}
	}
	t.resolved, err = notifications.ResolveByEvidence(ctx, t.tx, t.ws, rows)
	return err
}

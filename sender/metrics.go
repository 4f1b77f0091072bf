package sender

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics count what a sender does. The names are documented in docs/reference/metrics.md.
type Metrics struct {
	outcomes  *prometheus.CounterVec
	claims    prometheus.Histogram
	calls     prometheus.Histogram
	messages  prometheus.Counter
	deferred  prometheus.Counter
	late      prometheus.Counter
	expired   prometheus.Counter
	lost      prometheus.Counter
	retries   prometheus.Counter
	freed     prometheus.Counter
	trips     prometheus.Counter
	closings  prometheus.Counter
	probes    *prometheus.CounterVec
	pauses    *prometheus.CounterVec
	noSlot    *prometheus.CounterVec
	enqueues  prometheus.Counter
	uncertain prometheus.Counter
	rechecks  *prometheus.CounterVec
	unchecked prometheus.Counter
}

// NewMetrics registers a sender's metrics; with nil it counts into the void.
func NewMetrics(r prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &Metrics{
		outcomes:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_outcomes_total", Help: "Notifications by the outcome of their attempt (accepted, rejected, refused, unknown, skipped)."}, []string{"outcome"}),
		claims:    prometheus.NewHistogram(prometheus.HistogramOpts{Name: "lemma_claim_seconds", Help: "Time to claim a batch.", Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14)}),
		calls:     prometheus.NewHistogram(prometheus.HistogramOpts{Name: "lemma_window_seconds", Help: "Time to call a window of messages.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 16)}),
		messages:  counter("lemma_calls_total", "Messages handed to a carrier."),
		deferred:  counter("lemma_deferrals_total", "Messages that were surely not accepted and are called again later."),
		late:      counter("lemma_send_deadlines_missed_total", "Notifications that were not called because their send deadline had passed."),
		expired:   counter("lemma_lease_expiries_total", "Batches whose lease ran out and that the reaper dealt with."),
		lost:      counter("lemma_leases_lost_total", "Commits that found their lease gone; what they knew was kept as evidence."),
		retries:   counter("lemma_second_attempts_total", "Notifications that got a second attempt because the first is in doubt."),
		freed:     counter("lemma_rows_freed_total", "Rows of expired leases that were surely not called and went back."),
		trips:     counter("lemma_circuit_opened_total", "Times that a provider began to fail and its circuit opened."),
		closings:  counter("lemma_circuit_closed_total", "Times that a provider answered a probe and its circuit closed."),
		probes:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_circuit_probes_total", Help: "Probes of providers behind an open circuit, by result (answered, failed, nothing)."}, []string{"result"}),
		pauses:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_provider_pauses_total", Help: "Campaigns and flows paused because of their provider, by reason (provider_errors, provider_refused, provider_unusable)."}, []string{"reason"}),
		enqueues:  counter("lemma_swept_total", "Due batches without a job that were enqueued for again."),
		uncertain: counter("lemma_commit_retries_total", "Commits whose answer was lost and that were looked up again."),
		noSlot:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_sender_slots_refused_total", Help: "Times that a due batch found no slot to be sent at, by limit (provider, workspace, slow_providers)."}, []string{"limit"}),
		rechecks:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_rechecks_total", Help: "Notifications that had waited for long and were read again from their audience, by what came of it: kept, or the reason of the skip."}, []string{"result"}),
		unchecked: counter("lemma_recheck_failures_total", "Batches that wait because their audience cannot be read again."),
	}
	if r != nil {
		r.MustRegister(m.outcomes, m.claims, m.calls, m.messages, m.deferred, m.late, m.expired, m.lost, m.retries, m.freed, m.trips, m.closings, m.probes, m.pauses, m.noSlot, m.enqueues, m.uncertain, m.rechecks, m.unchecked)
	}
	return m
}

func (m *Metrics) claimed(took time.Duration) { m.claims.Observe(took.Seconds()) }

func (m *Metrics) called(n int, took time.Duration) {
	m.messages.Add(float64(n))
	m.calls.Observe(took.Seconds())
}

func (m *Metrics) committed(done []outcome) {
	counts := map[string]int{}
	for _, o := range done {
		counts[o.kind]++
	}
	for kind, n := range counts {
		m.outcomes.WithLabelValues(kind).Add(float64(n))
	}
}

func (m *Metrics) reaped(r Reaped) {
	m.expired.Add(float64(r.Batches))
	m.retries.Add(float64(r.Retried))
	m.freed.Add(float64(r.Freed))
	m.outcomes.WithLabelValues("orphaned").Add(float64(r.Orphaned))
}

func (m *Metrics) putOff()                { m.deferred.Inc() }
func (m *Metrics) missed(n int)           { m.late.Add(float64(n)) }
func (m *Metrics) leaseLost()             { m.lost.Inc() }
func (m *Metrics) commitRetried()         { m.uncertain.Inc() }
func (m *Metrics) throttled(limit string) { m.noSlot.WithLabelValues(limit).Inc() }
func (m *Metrics) tripped()               { m.trips.Inc() }
func (m *Metrics) closed()                { m.closings.Inc() }
func (m *Metrics) probed(result string)   { m.probes.WithLabelValues(result).Inc() }
func (m *Metrics) paused(reason string)   { m.pauses.WithLabelValues(reason).Inc() }
func (m *Metrics) swept(n int)            { m.enqueues.Add(float64(n)) }
func (m *Metrics) recheckFailed()         { m.unchecked.Inc() }

func (m *Metrics) rechecked(reason string) {
	if reason == "" {
		reason = "kept"
	}
	m.rechecks.WithLabelValues(reason).Inc()
}

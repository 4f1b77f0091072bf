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
	kept      prometheus.Counter
	retries   prometheus.Counter
	held      prometheus.Counter
	freed     prometheus.Counter
	crashed   prometheus.Counter
	opened    prometheus.Counter
	closings  prometheus.Counter
	probes    *prometheus.CounterVec
	pauses    *prometheus.CounterVec
	noSlot    *prometheus.CounterVec
	enqueues  prometheus.Counter
	uncertain prometheus.Counter
	rechecks  *prometheus.CounterVec
	stopped   *prometheus.CounterVec
	unchecked prometheus.Counter
	tests     *prometheus.CounterVec
	unusable  *prometheus.CounterVec
}

// NewMetrics registers a sender's metrics; with nil they are not exported.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		outcomes: vector("lemma_outcomes_total", "outcome",
			"Notifications by the outcome of their attempt (accepted, rejected, refused, unknown, skipped)."),
		claims:   histogram("lemma_claim_seconds", "Time to claim a batch.", 0.0005, 14),
		calls:    histogram("lemma_window_seconds", "Time to call a window of messages.", 0.001, 16),
		messages: counter("lemma_calls_total", "Messages passed to a carrier."),
		deferred: counter("lemma_deferrals_total", "Messages that were not accepted and are called again later."),
		late: counter("lemma_send_deadlines_missed_total",
			"Notifications that were not called because their send deadline had passed."),
		expired: counter("lemma_lease_expiries_total", "Batches whose lease expired and that the reaper settled."),
		lost:    counter("lemma_leases_lost_total", "Commits without a lease; their known outcomes were kept as evidence."),
		kept: counter("lemma_leases_kept_total",
			"Leases that a run of the reaper left to their holders, since the clock of the database was set ahead."),
		retries: counter("lemma_second_attempts_total", "Notifications with a second attempt, since the first is unknown."),
		held: counter("lemma_second_attempts_held_total",
			"Rows whose second attempt was held back in a run of the reaper, since events of the carrier may still come."),
		freed:    counter("lemma_rows_freed_total", "Rows of expired leases that were not called and went back."),
		crashed:  counter("lemma_rows_crashed_total", "Rows that were ended because the claims of their batch crashed in a row."),
		opened:   counter("lemma_circuit_opened_total", "Times that a provider began to fail and its circuit opened."),
		closings: counter("lemma_circuit_closed_total", "Times that a provider answered a probe and its circuit closed."),
		probes: vector("lemma_circuit_probes_total", "result",
			"Probes of providers behind an open circuit, by result (answered, failed, nothing)."),
		pauses: vector("lemma_provider_pauses_total", "reason",
			"Campaigns and flows paused because of their provider, by reason (provider_errors, provider_refused, provider_unusable)."),
		enqueues:  counter("lemma_swept_total", "Due batches without a job that were enqueued again."),
		uncertain: counter("lemma_commit_retries_total", "Commits whose answer was lost and that were checked."),
		noSlot: vector("lemma_sender_slots_refused_total", "limit",
			"Times that a due batch found no sender slot, by limit (provider, workspace, slow_providers, audience), or no memory (memory)."),
		stopped: vector("lemma_suppressed_total", "cause",
			"Notifications that were skipped because their address is suppressed, by cause."),
		rechecks: vector("lemma_rechecks_total", "result",
			"Notifications that were read again from their audience after a long wait: kept, or the reason of the skip."),
		tests: vector("lemma_provider_tests_total", "outcome", "Test messages that were sent over a provider, by outcome."),
		unusable: vector("lemma_batches_unprepared_total", "reason",
			"Batches that were given back uncalled, since something that they need is missing (public_url_missing, provider_unusable)."),
		unchecked: counter("lemma_recheck_failures_total", "Batches that wait because their audience cannot be read again."),
	}
	if r != nil {
		r.MustRegister(m.outcomes, m.claims, m.calls, m.messages, m.deferred, m.late, m.expired, m.lost, m.kept, m.retries, m.held, m.freed,
			m.crashed, m.opened, m.closings, m.probes, m.pauses, m.noSlot, m.enqueues, m.uncertain, m.rechecks, m.stopped, m.unchecked,
			m.tests, m.unusable)
	}
	return m
}

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

func vector(name, label, help string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
}

// histogram has buckets from least seconds, each twice the one before.
func histogram(name, help string, least float64, buckets int) prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help,
		Buckets: prometheus.ExponentialBuckets(least, 2, buckets)})
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
	m.kept.Add(float64(r.Kept))
	m.retries.Add(float64(r.Retried))
	m.held.Add(float64(r.Waiting))
	m.freed.Add(float64(r.Freed))
	m.crashed.Add(float64(r.Crashed))
	m.outcomes.WithLabelValues("orphaned").Add(float64(r.Orphaned))
}

func (m *Metrics) putOff()                 { m.deferred.Inc() }
func (m *Metrics) missed(n int)            { m.late.Add(float64(n)) }
func (m *Metrics) leaseLost()              { m.lost.Inc() }
func (m *Metrics) commitRetried()          { m.uncertain.Inc() }
func (m *Metrics) throttled(limit string)  { m.noSlot.WithLabelValues(limit).Inc() }
func (m *Metrics) tripped()                { m.opened.Inc() }
func (m *Metrics) closed()                 { m.closings.Inc() }
func (m *Metrics) probed(result string)    { m.probes.WithLabelValues(result).Inc() }
func (m *Metrics) paused(reason string)    { m.pauses.WithLabelValues(reason).Inc() }
func (m *Metrics) swept(n int)             { m.enqueues.Add(float64(n)) }
func (m *Metrics) suppressed(cause string) { m.stopped.WithLabelValues(cause).Inc() }
func (m *Metrics) tested(o Outcome)        { m.tests.WithLabelValues(string(o)).Inc() }
func (m *Metrics) recheckFailed()          { m.unchecked.Inc() }

func (m *Metrics) unprepared(noPublicURL bool) {
	reason := "provider_unusable"
	if noPublicURL {
		reason = "public_url_missing"
	}
	m.unusable.WithLabelValues(reason).Inc()
}

func (m *Metrics) rechecked(reason string) {
	if reason == "" {
		reason = "kept"
	}
	m.rechecks.WithLabelValues(reason).Inc()
}

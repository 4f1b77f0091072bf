package enrollment

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics count what triggers do and how enrollments move.
type Metrics struct {
	Events    *prometheus.CounterVec
	Triggers  *prometheus.CounterVec
	Steps     *prometheus.CounterVec
	Blocked   *prometheus.CounterVec
	Conflicts prometheus.Counter
	Cancelled *prometheus.CounterVec
	Sources   *prometheus.CounterVec
	Failures  *prometheus.CounterVec
	Left      *prometheus.CounterVec
	Compared  prometheus.Counter
	chunks    prometheus.Histogram
	chunkSize prometheus.Histogram
}

// NewMetrics registers them; a nil Registerer registers nothing.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		Events: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_trigger_events_total",
			Help: "Received events: recorded, duplicate, invalid, or refused because too many were waiting (overloaded), " +
				"conditions took too long (condition_time) or others of a request enroll too often (too_many_enrollments)."}, []string{"result"}),
		Triggers: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_flow_triggers_total",
			Help: "Triggers by outcome: enrolled, the reason of the refusal, or refused because too many were waiting (overloaded)."},
			[]string{"result"}),
		Steps: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_flow_steps_total",
			Help: "Steps of enrollments by event."}, []string{"event"}),
		Blocked: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_flow_blocked_total",
			Help: "How often due enrollments were blocked, by blocked_reason."}, []string{"blocked_reason"}),
		Conflicts: prometheus.NewCounter(prometheus.CounterOpts{Name: "lemma_flow_conflicts_total",
			Help: "Enrollments that another transaction moved between the read and the update of a worker, or held locked."}),
		Cancelled: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_flow_cancelled_total",
			Help: "Messages of archived flows that were cancelled, by the reason of their provider."}, []string{"reason"}),
		Sources: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_flow_source_queries_refused_total",
			Help: "Queries of flows to data sources that found no place and are tried again, by limit: source, workspace, process."},
			[]string{"limit"}),
		Failures: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_flow_failures_total",
			Help: "Failed work on flows that is retried, by kind of work."}, []string{"work"}),
		Left: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_flow_left_total",
			Help: "Due enrollments that a chunk left to the next one, by limit: memory, time."}, []string{"limit"}),
		Compared: prometheus.NewCounter(prometheus.CounterOpts{Name: "lemma_flow_comparisons_limited_total",
			Help: "How often a profile's triggers were compared with its newest 1,000 enrollments only, since the flow's recurrence had changed."}),
		chunks: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "lemma_flow_chunk_seconds",
			Help: "Time to advance one chunk of enrollments.", Buckets: prometheus.ExponentialBuckets(0.002, 2, 14)}),
		chunkSize: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "lemma_flow_chunk_enrollments", Help: "Enrollments in a chunk.",
			Buckets: prometheus.ExponentialBuckets(1, 4, 6)}),
	}
	if r != nil {
		r.MustRegister(m.Events, m.Triggers, m.Steps, m.Blocked, m.Conflicts, m.Cancelled, m.Sources, m.Failures, m.Left, m.Compared,
			m.chunks, m.chunkSize)
	}
	return m
}

// Triggered counts triggers by their outcome.
func (m *Metrics) Triggered(outcome, reason string, n int) {
	if outcome != Enrolled {
		outcome = reason
	}
	m.Triggers.WithLabelValues(outcome).Add(float64(n))
}

// SourceRefused counts a query to a data source for which a limit left no place.
func (m *Metrics) SourceRefused(limit string) { m.Sources.WithLabelValues(limit).Inc() }

// Failed counts work that is retried.
func (m *Metrics) Failed(work string) { m.Failures.WithLabelValues(work).Inc() }

// Advanced counts a chunk of enrollments.
func (m *Metrics) Advanced(n int, took time.Duration) {
	m.chunks.Observe(took.Seconds())
	m.chunkSize.Observe(float64(n))
}

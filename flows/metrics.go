package flows

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics count what triggers do and how enrollments move.
type Metrics struct {
	events    *prometheus.CounterVec
	triggers  *prometheus.CounterVec
	steps     *prometheus.CounterVec
	postponed *prometheus.CounterVec
	overtaken prometheus.Counter
	failures  *prometheus.CounterVec
	lots      prometheus.Histogram
	lotSize   prometheus.Histogram
}

// NewMetrics registers them; with nil it counts into the void.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		events:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_trigger_events_total", Help: "Events that were told: recorded, duplicate, invalid, or turned away because too many were waiting (overloaded)."}, []string{"result"}),
		triggers:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_flow_triggers_total", Help: "Triggers by what came of them: enrolled, refused by reason, or turned away because too many were waiting (overloaded)."}, []string{"result"}),
		steps:     prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_flow_steps_total", Help: "Steps of enrollments by what happened."}, []string{"event"}),
		postponed: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_flow_postponed_total", Help: "Enrollments that were due and could not go on, by what kept them."}, []string{"trouble"}),
		overtaken: prometheus.NewCounter(prometheus.CounterOpts{Name: "lemma_flow_overtaken_total", Help: "Enrollments that had been moved by somebody else between being read and being moved: left alone."}),
		failures:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_flow_failures_total", Help: "Work on flows that failed and is tried again, by what it was."}, []string{"work"}),
		lots:      prometheus.NewHistogram(prometheus.HistogramOpts{Name: "lemma_flow_lot_seconds", Help: "Time to advance one lot of enrollments.", Buckets: prometheus.ExponentialBuckets(0.002, 2, 14)}),
		lotSize:   prometheus.NewHistogram(prometheus.HistogramOpts{Name: "lemma_flow_lot_enrollments", Help: "Enrollments in a lot.", Buckets: prometheus.ExponentialBuckets(1, 4, 6)}),
	}
	if r != nil {
		r.MustRegister(m.events, m.triggers, m.steps, m.postponed, m.overtaken, m.failures, m.lots, m.lotSize)
	}
	return m
}

func (m *Metrics) recorded(all []Recorded) {
	for _, r := range all {
		switch {
		case r.Err != nil:
			m.events.WithLabelValues("invalid").Inc()
		case r.Duplicate:
			m.events.WithLabelValues("duplicate").Inc()
		default:
			m.events.WithLabelValues("recorded").Inc()
		}
		m.steps.WithLabelValues(stepExited).Add(float64(r.Exited))
		for _, one := range r.Results {
			m.triggered(one.Outcome, one.Reason, 1)
		}
	}
}

func (m *Metrics) triggered(outcome, reason string, n int) {
	if outcome != Enrolled {
		outcome = reason
	}
	m.triggers.WithLabelValues(outcome).Add(float64(n))
}

// turnedAway counts events for which there was no room.
func (m *Metrics) turnedAway(n int) { m.events.WithLabelValues(codeOverloaded).Add(float64(n)) }

func (m *Metrics) failed(work string) { m.failures.WithLabelValues(work).Inc() }

func (m *Metrics) advanced(n int, took time.Duration) {
	m.lots.Observe(took.Seconds())
	m.lotSize.Observe(float64(n))
}

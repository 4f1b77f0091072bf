package tracking

import "github.com/prometheus/client_golang/prometheus"

// Metrics count opens and clicks. The names are documented in docs/reference/metrics.md.
type Metrics struct {
	events, left            *prometheus.CounterVec
	lost, unmatched, floods prometheus.Counter
}

// NewMetrics registers the metrics; with nil they are not exported.
func NewMetrics(r prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &Metrics{
		events: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_tracking_events_total",
			Help: "Opens and clicks that were applied, by the reason why they are a machine's."}, []string{"type", "machine"}),
		left: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_tracking_links_left_total",
			Help: "Links to the web that were sent without tracking, by the reason."}, []string{"reason"}),
		lost:      counter("lemma_tracking_lost_total", "Opens and clicks that were not stored in time."),
		unmatched: counter("lemma_tracking_unmatched_total", "Opens and clicks of notifications that no longer exist."),
		floods:    counter("lemma_tracking_floods_total", "Requests about a notification beyond those that are stored one by one."),
	}
	if r != nil {
		r.MustRegister(m.events, m.left, m.lost, m.unmatched, m.floods)
	}
	return m
}

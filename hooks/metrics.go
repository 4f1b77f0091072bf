package hooks

import "github.com/prometheus/client_golang/prometheus"

// Metrics count the webhooks of carriers. The names are documented in docs/reference/metrics.md.
type Metrics struct {
	events, refused, unmatched, duplicates, noID, floods, unreadable *prometheus.CounterVec
	lag                                                              *prometheus.HistogramVec
	took                                                             prometheus.Histogram
}

// NewMetrics registers the metrics; with nil they are not exported.
func NewMetrics(r prometheus.Registerer) *Metrics {
	vector := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &Metrics{
		events:  vector("lemma_hooks_events_total", "Provider events that came by webhook, each once.", "carrier", "type"),
		refused: vector("lemma_hooks_refused_total", "Webhooks that were refused, by reason.", "carrier", "reason"),
		unmatched: vector("lemma_hooks_unmatched_total",
			"Events that name no notification of their workspace, without those that have an address, such as STOP.", "carrier"),
		duplicates: vector("lemma_hooks_duplicates_total", "Events that had been stored before.", "carrier"),
		noID:       vector("lemma_hooks_without_id_total", "Events without an id, of which each repetition is stored.", "carrier"),
		floods: vector("lemma_hooks_floods_total", "Events without an id beyond those that are stored of a notification.",
			"carrier"),
		unreadable: vector("lemma_hooks_unreadable_addresses_total",
			"Events about an address that cannot be read, and about no notification: they have no effect.", "carrier", "reason"),
		lag: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "lemma_hooks_lag_seconds",
			Help:    "From an event at the carrier until it is stored.",
			Buckets: prometheus.ExponentialBuckets(0.25, 4, 10)}, []string{"carrier"}),
		took: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "lemma_hooks_seconds",
			Help: "Time to answer a webhook.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 14)}),
	}
	if r != nil {
		r.MustRegister(m.events, m.refused, m.unmatched, m.duplicates, m.noID, m.floods, m.unreadable, m.lag, m.took)
	}
	return m
}

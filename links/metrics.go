package links

import "github.com/prometheus/client_golang/prometheus"

// Metrics count refused tokens. The names are documented in docs/reference/metrics.md.
type Metrics struct{ refused *prometheus.CounterVec }

// NewMetrics registers the metrics; with nil they are not exported.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_links_refused_total",
		Help: "Tokens of links that Lemma has not signed, by the purpose of the request and the reason."}, []string{"purpose", "reason"})}
	if r != nil {
		r.MustRegister(m.refused)
	}
	return m
}

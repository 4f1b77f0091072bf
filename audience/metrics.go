package audience

import "github.com/prometheus/client_golang/prometheus"

// Metrics are the metrics of data sources.
type Metrics struct {
	panics     prometheus.Counter
	overloaded *prometheus.CounterVec
}

// NewMetrics returns metrics, registered at r.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		panics: prometheus.NewCounter(prometheus.CounterOpts{Name: "lemma_source_panics_total",
			Help: "Replies of data sources that made a database driver panic; the reading failed."}),
		overloaded: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_source_reads_refused_total",
			Help: "Reads and lookups of data sources for API requests that a limit refused: on the source, in the workspace, in the process."},
			[]string{"limit"}),
	}
	r.MustRegister(m.panics, m.overloaded)
	return m
}

func (m *Metrics) panicked() {
	if m != nil {
		m.panics.Inc()
	}
}

func (m *Metrics) refused(limit string) {
	if m != nil {
		m.overloaded.WithLabelValues(limit).Inc()
	}
}

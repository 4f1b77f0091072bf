package exports

import "github.com/prometheus/client_golang/prometheus"

// Metrics count exports.
type Metrics struct {
	rows    prometheus.Counter
	ended   *prometheus.CounterVec
	seconds prometheus.Histogram
	busy    *prometheus.CounterVec
}

// NewMetrics registers the metrics, or none when r is nil.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		rows: prometheus.NewCounter(prometheus.CounterOpts{Name: "lemma_export_rows_total", Help: "Rows of exports that were committed."}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_exports_ended_total",
			Help: "Exports that ended, by status (completed, failed)."}, []string{"status"}),
		busy: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_downloads_refused_total",
			Help: "Downloads that found no place in time, by limit: workspace, process."}, []string{"limit"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "lemma_export_seconds",
			Help: "How long the committed attempt of an export took.", Buckets: []float64{0.1, 1, 10, 60, 600, 3600}}),
	}
	if r != nil {
		r.MustRegister(m.rows, m.ended, m.seconds, m.busy)
	}
	return m
}

package retention

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lemma/migrations"
)

// Metrics are about partitions. The names are documented in docs/reference/metrics.md.
type Metrics struct {
	dropped     *prometheus.CounterVec
	held, ahead prometheus.Gauge
}

// NewMetrics registers the metrics; with nil they are not exported.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lemma_partitions_dropped_total", Help: "Partitions that this process has dropped."}, []string{"table"}),
		held: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "lemma_partitions_held", Help: "Partitions that are older than their retention, and still needed or busy."}),
		ahead: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "lemma_partitions_months_ahead", Help: "Coming months for which all tables have partitions."}),
	}
	m.ahead.Set(1) // until the first run
	if r != nil {
		r.MustRegister(m.dropped, m.held, m.ahead)
	}
	return m
}

func (m *Metrics) report(all []migrations.Partition, done Done, now time.Time) {
	m.held.Set(float64(len(done.Held)))
	m.ahead.Set(float64(ahead(all, now)))
}

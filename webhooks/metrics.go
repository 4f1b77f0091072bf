package webhooks

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics count messages and calls. The names are documented in docs/reference/metrics.md.
type Metrics struct {
	ended   *prometheus.CounterVec
	calls   prometheus.Histogram
	retries prometheus.Counter
}

// NewMetrics registers the metrics of webhooks; with nil they are not exported.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lemma_webhooks_total", Help: "Ended webhook messages by result (delivered, failed)."}, []string{"result"}),
		calls: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "lemma_webhook_call_seconds", Help: "Duration of one webhook call.",
			Buckets: prometheus.ExponentialBuckets(0.005, 2, 12)}),
		retries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lemma_webhook_retries_total", Help: "Webhook calls that are retried later."}),
	}
	if r != nil {
		r.MustRegister(m.ended, m.calls, m.retries)
	}
	return m
}

func (m *Metrics) called(d time.Duration) { m.calls.Observe(d.Seconds()) }

func (m *Metrics) settled(v result, ended bool) {
	switch {
	case !ended:
		m.retries.Inc()
	case v.delivered():
		m.ended.WithLabelValues("delivered").Inc()
	default:
		m.ended.WithLabelValues("failed").Inc()
	}
}

package webhooks

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics count what webhooks do. The names are documented in docs/reference/metrics.md.
type Metrics struct {
	ended   *prometheus.CounterVec
	calls   prometheus.Histogram
	retries prometheus.Counter
}

// NewMetrics registers the metrics of webhooks; with nil it counts into the void.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		ended:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_webhooks_total", Help: "Messages to customers' systems by what came of them (delivered, failed)."}, []string{"result"}),
		calls:   prometheus.NewHistogram(prometheus.HistogramOpts{Name: "lemma_webhook_call_seconds", Help: "Time of one call to a customer's system.", Buckets: prometheus.ExponentialBuckets(0.005, 2, 12)}),
		retries: prometheus.NewCounter(prometheus.CounterOpts{Name: "lemma_webhook_retries_total", Help: "Calls that did not end their message, which is called again later."}),
	}
	if r != nil {
		r.MustRegister(m.ended, m.calls, m.retries)
	}
	return m
}

func (m *Metrics) called(took time.Duration) { m.calls.Observe(took.Seconds()) }

func (m *Metrics) settled(v verdict, ended bool) {
	switch {
	case !ended:
		m.retries.Inc()
	case v.delivered():
		m.ended.WithLabelValues("delivered").Inc()
	default:
		m.ended.WithLabelValues("failed").Inc()
	}
}

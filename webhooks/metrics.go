package webhooks

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics count messages and calls. The names are documented in docs/reference/metrics.md.
type Metrics struct {
	ended                      *prometheus.CounterVec
	calls                      prometheus.Histogram
	kept                       *prometheus.CounterVec
	retries, deferred, locked  prometheus.Counter
	events, messages, disabled prometheus.Counter
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
		kept: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_webhook_answers_kept_total",
			Help: "Answers that could not be stored with their effects, and are stored later, by reason (locked, error)."}, []string{"reason"}),
		deferred: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lemma_webhook_claims_deferred_total",
			Help: "Claims of webhook messages that left out a workspace, since it has all calls of its share, or its answers cannot be stored."}),
		locked: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lemma_events_out_locked_total",
			Help: "Workspaces whose events were published later, since another transaction had one of their endpoints locked."}),
		events: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lemma_events_out_published_total", Help: "Events that were published, also to no endpoint."}),
		messages: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lemma_events_out_messages_total", Help: "Webhook messages that were written for events."}),
		disabled: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lemma_webhook_endpoints_disabled_total", Help: "Webhook endpoints that were disabled since they fail."}),
	}
	if r != nil {
		r.MustRegister(m.ended, m.calls, m.retries, m.kept, m.deferred, m.locked, m.events, m.messages, m.disabled)
	}
	return m
}

func (m *Metrics) called(d time.Duration) { m.calls.Observe(d.Seconds()) }

func (m *Metrics) published(events, messages int) {
	m.events.Add(float64(events))
	m.messages.Add(float64(messages))
}

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

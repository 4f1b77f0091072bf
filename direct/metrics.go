package direct

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"lemma/flows/admission"
)

// Metrics count direct notifications. The names are documented in docs/reference/metrics.md.
type Metrics struct {
	requests *prometheus.CounterVec
	together prometheus.Histogram
	carried  prometheus.Counter
}

// NewMetrics registers the metrics; with nil they are not exported.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_direct_requests_total",
			Help: "Requests of direct notifications, and items of bulks, by result."}, []string{"result"}),
		together: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "lemma_direct_chunk_requests",
			Help: "Requests that were stored in one transaction.", Buckets: prometheus.ExponentialBuckets(1, 2, 11)}),
		carried: prometheus.NewCounter(prometheus.CounterOpts{Name: "lemma_direct_keys_carried_total",
			Help: "Keys that outlived their period and were moved to the current one."}),
	}
	if r != nil {
		r.MustRegister(m.requests, m.together, m.carried)
	}
	return m
}

// refused counts a request, or a bulk, that was refused since too many are in progress.
func (m *Metrics) refused(err error) {
	if admission.IsOverloaded(err) {
		m.requests.WithLabelValues(admission.CodeOverloaded).Inc()
	}
}

func (m *Metrics) count(r Result) {
	label := "accepted"
	var locked *Locked
	switch {
	case errors.As(r.Err, &locked):
		label = "locked"
	case r.Err != nil:
		label = "invalid"
	case r.Filtered:
		label = "filtered"
	}
	m.requests.WithLabelValues(label).Inc()
}

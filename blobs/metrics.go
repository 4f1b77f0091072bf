package blobs

import "github.com/prometheus/client_golang/prometheus"

// Metrics count what blobs does.
type Metrics struct {
	bytes, cleaned prometheus.Counter
}

// NewMetrics registers the metrics, or none when r is nil.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		bytes: prometheus.NewCounter(prometheus.CounterOpts{Name: "lemma_blob_bytes_total",
			Help: "Bytes written to the blob store."}),
		cleaned: prometheus.NewCounter(prometheus.CounterOpts{Name: "lemma_blobs_cleaned_total",
			Help: "Deletions of content of attempts that have ended."}),
	}
	if r != nil {
		r.MustRegister(m.bytes, m.cleaned)
	}
	return m
}

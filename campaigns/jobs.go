package campaigns

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river"

	"lemma/notifications"
)

// QueueFanout is the River queue of campaign_fanout jobs.
const QueueFanout = "fanout"

// FanoutArgs is the bell of a fan-out.
type FanoutArgs struct {
	WorkspaceID uuid.UUID `json:"workspace_id"`
	CampaignID  uuid.UUID `json:"campaign_id"`
}

// Kind names the job in River's table.
func (FanoutArgs) Kind() string { return "campaign_fanout" }

func (c *Campaigns) ring(ctx context.Context, tx pgx.Tx, workspaceID, id uuid.UUID) error {
	_, err := c.jobs.InsertTx(ctx, tx, FanoutArgs{workspaceID, id}, &river.InsertOpts{Queue: QueueFanout, MaxAttempts: 5})
	if err != nil {
		return fmt.Errorf("ring for fan-out of %s: %w", id, err)
	}
	return nil
}

type worker struct {
	river.WorkerDefaults[FanoutArgs]
	campaigns *Campaigns
}

func (w *worker) Work(ctx context.Context, job *river.Job[FanoutArgs]) error {
	again, err := w.campaigns.Fanout(ctx, job.Args.WorkspaceID, job.Args.CampaignID)
	if err == nil && again > 0 {
		return river.JobSnooze(again)
	}
	return err
}

// Timeout: the audience's own limits bound a fan-out, not its job.
func (w *worker) Timeout(*river.Job[FanoutArgs]) time.Duration { return -1 }

// Register adds the room's workers to a River client's.
func (c *Campaigns) Register(workers *river.Workers) { river.AddWorker(workers, &worker{campaigns: c}) }

// Metrics count what fan-outs write.
type Metrics struct {
	written *prometheus.CounterVec
	chunks  prometheus.Histogram
	tries   *prometheus.CounterVec
	queued  *prometheus.CounterVec
	lost    prometheus.Counter
	pauses  prometheus.Counter
}

// NewMetrics registers them; with nil it counts into the void.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		written: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_recipients_total", Help: "Recipients written by fan-outs: created, or skipped by reason."}, []string{"result"}),
		chunks:  prometheus.NewHistogram(prometheus.HistogramOpts{Name: "lemma_fanout_chunk_seconds", Help: "Time to write one chunk of a fan-out.", Buckets: prometheus.ExponentialBuckets(0.002, 2, 12)}),
		tries:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_fanout_writes_total", Help: "Chunks that fan-outs wrote by COPY (copied) or insert (inserted), and tries that were repeated after a conflict of a COPY or a deadlock."}, []string{"result"}),
		queued:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lemma_fanouts_queued_total", Help: "Claims of a fan-out that found no place, by the limit that was reached."}, []string{"limit"}),
		lost:    prometheus.NewCounter(prometheus.CounterOpts{Name: "lemma_fanout_leases_lost_total", Help: "Fan-outs that found their lease gone and changed nothing."}),
		pauses:  prometheus.NewCounter(prometheus.CounterOpts{Name: "lemma_template_error_pauses_total", Help: "Campaigns that were paused because too many of their messages could not be rendered."}),
	}
	if r != nil {
		r.MustRegister(m.written, m.chunks, m.tries, m.queued, m.lost, m.pauses)
	}
	return m
}

// tried counts one try to write a chunk.
func (m *Metrics) tried(result string) { m.tries.WithLabelValues(result).Inc() }

func (m *Metrics) pausedForErrors() { m.pauses.Inc() }

func (m *Metrics) wrote(w notifications.Written, took time.Duration) {
	m.chunks.Observe(took.Seconds())
	m.written.WithLabelValues("created").Add(float64(w.Created))
	for reason, n := range w.Skipped {
		m.written.WithLabelValues(reason).Add(float64(n))
	}
}

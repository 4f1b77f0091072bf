package campaigns

import (
	"context"
	"fmt"
	"time"

	"lemma"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river"

	"lemma/notifications"
)

// QueueFanout is the River queue of campaign_fanout jobs.
const QueueFanout = "fanout"

// FanoutArgs are the arguments of a job that runs a fan-out.
type FanoutArgs struct {
	WorkspaceID uuid.UUID `json:"workspace_id"`
	CampaignID  uuid.UUID `json:"campaign_id"`
}

// Kind names the job in River's table.
func (FanoutArgs) Kind() string { return "campaign_fanout" }

func (c *Campaigns) enqueue(ctx context.Context, tx pgx.Tx, workspaceID, id uuid.UUID) error {
	return c.enqueueIn(ctx, tx, ref{workspaceID, id}, 0)
}

// enqueueIn inserts a job in place of one that has not begun: a campaign has one, however often it is
// paused and resumed. Beside one that runs there is another, since that may have looked already.
func (c *Campaigns) enqueueIn(ctx context.Context, tx pgx.Tx, r ref, after time.Duration) error {
	_, err := tx.Exec(ctx, `
		delete from river_job
		where kind = $1 and args @> jsonb_build_object('campaign_id', $2::uuid)
			and state in ('available', 'scheduled', 'retryable', 'pending')`, FanoutArgs{}.Kind(), r.ID)
	if err != nil {
		return fmt.Errorf("delete the job of fan-out %s: %w", r.ID, err)
	}
	opts := &river.InsertOpts{Queue: QueueFanout, MaxAttempts: 5}
	if after > 0 {
		if err := tx.QueryRow(ctx, `select now() + $1::interval`, after).Scan(&opts.ScheduledAt); err != nil {
			return fmt.Errorf("read the time: %w", err)
		}
	}
	_, err = c.jobs.InsertTx(ctx, tx, FanoutArgs{r.WorkspaceID, r.ID}, opts)
	return lemma.Wrap(err, "enqueue fan-out of %s", r.ID)
}

type worker struct {
	river.WorkerDefaults[FanoutArgs]
	campaigns *Campaigns
}

// Work runs fan-outs whose turn it is, and its own, and snoozes the job until that must run again.
func (w *worker) Work(ctx context.Context, job *river.Job[FanoutArgs]) error {
	if err := w.campaigns.serve(ctx); err != nil { // of another campaign: no reason to delay this one
		w.campaigns.failed("fan-out of another job")(err)
	}
	again, err := w.campaigns.Fanout(ctx, job.Args.WorkspaceID, job.Args.CampaignID)
	if err == nil && again > 0 {
		return river.JobSnooze(again)
	}
	return err
}

// Timeout is none: the limits of the audience bound a fan-out.
func (w *worker) Timeout(*river.Job[FanoutArgs]) time.Duration { return -1 }

// Register adds the worker of fan-outs.
func (c *Campaigns) Register(workers *river.Workers) { river.AddWorker(workers, &worker{campaigns: c}) }

// Metrics are the metrics of fan-outs.
type Metrics struct {
	written *prometheus.CounterVec
	chunks  prometheus.Histogram
	writes  *prometheus.CounterVec
	queued  *prometheus.CounterVec
	lost    prometheus.Counter
	pauses  prometheus.Counter
}

// NewMetrics returns metrics. It registers them if r is not nil.
func NewMetrics(r prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	counters := func(name, label, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	}
	m := &Metrics{
		written: counters("lemma_recipients_total", "result", "Recipients written by fan-outs: created, or skipped by reason."),
		chunks: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "lemma_fanout_chunk_seconds",
			Help: "Time to write one chunk of a fan-out.", Buckets: prometheus.ExponentialBuckets(0.002, 2, 12)}),
		writes: counters("lemma_fanout_writes_total", "result", "Chunks that fan-outs wrote by COPY (copied) or insert (inserted), "+
			"and attempts that were repeated after a conflict of a COPY or a deadlock."),
		queued: counters("lemma_fanouts_queued_total", "limit", "Claims of a fan-out that a limit deferred, by the limit."),
		lost:   counter("lemma_fanout_leases_lost_total", "Writes of fan-outs that had lost their lease, which had no effect."),
		pauses: counter("lemma_template_error_pauses_total", "Campaigns paused because too many of their messages could not be rendered."),
	}
	if r != nil {
		r.MustRegister(m.written, m.chunks, m.writes, m.queued, m.lost, m.pauses)
	}
	return m
}

// tried counts an attempt to write a chunk.
func (m *Metrics) tried(result string) { m.writes.WithLabelValues(result).Inc() }

func (m *Metrics) pausedForErrors() { m.pauses.Inc() }

func (m *Metrics) wrote(w notifications.Written, took time.Duration) {
	m.chunks.Observe(took.Seconds())
	m.written.WithLabelValues("created").Add(float64(w.Created))
	for reason, n := range w.Skipped {
		m.written.WithLabelValues(reason).Add(float64(n))
	}
}

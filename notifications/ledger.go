// Package notifications is the ledger of what is to be sent. It guarantees:
//
//   - A notification is inserted once, however often a chunk is repeated.
//   - Every profile of an audience has exactly one row, with a reason when
//     nothing is sent to them.
//   - A status is derived in one place, the function notification_outcome, and the
//     counts balance. The view notification_status has it.
//
// It inserts notifications, their batches and the jobs of these, and opens and
// closes their gate. Package sender makes the calls.
package notifications

import (
	"context"
	"fmt"
	"slices"
	"time"

	"lemma"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
)

// The River queues of batch_send jobs. Direct notifications have workers of their own, so
// that they never wait behind a campaign.
const (
	QueueSend   = "send"
	QueueDirect = "direct"
)

// Ledger reads and writes notifications.
type Ledger struct {
	pool *pgxpool.Pool
	jobs *river.Client[pgx.Tx] // inserts only

	unholdMost, releasePage int // constants, and lower in tests
}

// New makes a ledger on a pool.
func New(pool *pgxpool.Pool) *Ledger {
	jobs, err := river.NewClient(riverpgxv5.New(pool), &river.Config{FetchCooldown: notifyEvery})
	if err != nil {
		panic("insert-only river client: " + err.Error()) // its config is a constant
	}
	return &Ledger{pool: pool, jobs: jobs, unholdMost: unholdMost, releasePage: releasePage}
}

// notifyEvery is how often the workers of a queue are notified at most. A job that is
// inserted between two notifications waits for the next poll, so that it bounds the
// latency of direct notifications.
const notifyEvery = time.Millisecond

// Ref names a batch. It is all that a job carries.
type Ref struct {
	WorkspaceID uuid.UUID `json:"workspace_id"`
	OriginID    uuid.UUID `json:"origin_id"`
	BatchID     uuid.UUID `json:"batch_id"`
}

// BatchSend is a job for a batch that may be due. It may run twice or never: the
// row of the batch decides.
type BatchSend struct{ Ref }

// Kind names the job in River's table.
func (BatchSend) Kind() string { return "batch_send" }

// Job is one batch_send job to insert.
type Job struct {
	Ref
	After time.Duration // from now; 0: at once
	Last  bool          // of direct notifications: after jobs without Last
}

// Enqueue inserts the jobs of batches in the transaction that made them due.
func (l *Ledger) Enqueue(ctx context.Context, tx pgx.Tx, jobs []Job) error {
	if len(jobs) == 0 {
		return nil
	}
	var now time.Time
	if slices.ContainsFunc(jobs, func(j Job) bool { return j.After > 0 }) {
		if err := tx.QueryRow(ctx, `select now()`).Scan(&now); err != nil {
			return fmt.Errorf("read the time: %w", err)
		}
	}
	params := make([]river.InsertManyParams, len(jobs))
	for i, j := range jobs {
		params[i] = river.InsertManyParams{Args: BatchSend{j.Ref}, InsertOpts: j.options(now)}
	}
	_, err := l.jobs.InsertManyTx(ctx, tx, params)
	return lemma.Wrap(err, "enqueue %d batches", len(jobs))
}

// options allow few attempts, since the sweep enqueues a batch again whose job was
// discarded. now is the time of the database.
func (j Job) options(now time.Time) *river.InsertOpts {
	opts := &river.InsertOpts{Queue: QueueSend, MaxAttempts: 3}
	if IsDirect(j.OriginID) {
		opts.Queue = QueueDirect
	}
	if j.Last {
		opts.Priority = 2
	}
	if j.After > 0 {
		opts.ScheduledAt = now.Add(j.After)
	}
	return opts
}

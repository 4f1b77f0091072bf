// Package notifications is the ledger in the hallway. Its promise to campaigns
// and flows: an intent that was written is written once, whoever repeats it,
// and everybody in an audience has exactly one row in it, with a reason when
// nothing will be sent. Its promise to readers: a status is derived in one
// place, the view notification_status, and the books balance.
//
// It inserts intents and the batches that carry them, and rings the bell for
// them; it opens and shuts their gate. What becomes of them it leaves to sender.
package notifications

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
)

// QueueSend is the River queue of batch_send jobs.
const QueueSend = "send"

// Ledger reads and writes notifications.
type Ledger struct {
	pool *pgxpool.Pool
	jobs *river.Client[pgx.Tx] // inserts only
}

// New makes a ledger on a pool. Its River client inserts jobs and works none.
func New(pool *pgxpool.Pool) *Ledger {
	jobs, err := river.NewClient(riverpgxv5.New(pool), &river.Config{})
	if err != nil {
		panic("insert-only river client: " + err.Error()) // its config is a constant
	}
	return &Ledger{pool: pool, jobs: jobs}
}

// Ref names a batch. It is all that a job carries.
type Ref struct {
	WorkspaceID uuid.UUID `json:"workspace_id"`
	OriginID    uuid.UUID `json:"origin_id"`
	BatchID     uuid.UUID `json:"batch_id"`
}

// BatchSend is the doorbell: it says that a batch may be due. It may ring
// twice or never; the batch is the truth.
type BatchSend struct{ Ref }

// Kind names the job in River's table.
func (BatchSend) Kind() string { return "batch_send" }

// Bell is one ring for a batch.
type Bell struct {
	Ref
	After time.Duration // from now; 0 rings at once
}

// Ring inserts the jobs of batches in the transaction that made them due.
func (l *Ledger) Ring(ctx context.Context, tx pgx.Tx, bells []Bell) error {
	if len(bells) == 0 {
		return nil
	}
	jobs := make([]river.InsertManyParams, len(bells))
	for i, b := range bells {
		jobs[i] = river.InsertManyParams{Args: BatchSend{b.Ref}, InsertOpts: bellOpts(b.After)}
	}
	if _, err := l.jobs.InsertManyTx(ctx, tx, jobs); err != nil {
		return fmt.Errorf("ring for %d batches: %w", len(bells), err)
	}
	return nil
}

// bellOpts: few tries, since a bell that is given up is rung again by the sweep.
func bellOpts(after time.Duration) *river.InsertOpts {
	opts := &river.InsertOpts{Queue: QueueSend, MaxAttempts: 3}
	if after > 0 {
		opts.ScheduledAt = time.Now().Add(after)
	}
	return opts
}

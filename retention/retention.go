// Package retention guarantees that old data leaves Lemma by whole months, and only when
// nothing needs it: partitions whose age is above a setting per kind are dropped, and
// those of the coming months exist before the first row.
//
// The settings of all processes decide (rule.go): the longest retention holds, and while one
// of them archives, a process that does not leaves the partitions to it.
//
// What "needs" means is decided by the database (use.go). Batches are never dropped:
// there is one for some hundreds of notifications, and the counts of campaigns and flows
// are their sums. How a partition is dropped is decided by package migrations. With the
// direct notifications of a month their contents are deleted (contents.go).
package retention

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/loop"
	"lemma/migrations"
)

// Config has how long the data of each kind is kept after its month, as this process is set
// up. Zero keeps it for ever.
type Config struct {
	Notifications  time.Duration // with attempts, delivery states and engagements
	ProviderEvents time.Duration // with opens and clicks
	BatchLog       time.Duration
	Steps          time.Duration // of enrollments

	// Archive is called with a detached partition before it is dropped. An error keeps
	// the partition for the next run. nil: nothing is archived.
	Archive func(context.Context, migrations.Partition) error
}

// Least is the shortest retention but zero: no carrier repeats an event later.
const Least = 31 * 24 * time.Hour

// kept are the tables of each kind. Those that count notifications once come after
// notifications, since they are needed until these are gone.
func (c Config) kept() map[string]time.Duration {
	return map[string]time.Duration{
		"notifications": c.Notifications, "attempts": c.Notifications, "deliveries": c.Notifications, "engagements": c.Notifications,
		"provider_events": c.ProviderEvents, "tracking_events": c.ProviderEvents,
		"batch_log":        c.BatchLog,
		"enrollment_steps": c.Steps,
		"batches":          0,
		"audit_log":        0, // a record of an operator, not of a campaign: it is kept
	}
}

// due reports whether a partition is older than its retention.
func (c Config) due(p migrations.Partition, now time.Time) bool {
	kept := c.kept()[p.Table]
	return kept > 0 && !now.Before(p.End().Add(kept))
}

// Retention creates and drops partitions.
type Retention struct {
	pool    *pgxpool.Pool
	log     *slog.Logger
	metrics *Metrics
	cfg     Config
}

// New returns a Retention that does nothing before Run or Loop.
func New(pool *pgxpool.Pool, log *slog.Logger, metrics *Metrics, cfg Config) *Retention {
	return &Retention{pool, log, metrics, cfg}
}

// every is the interval of Loop.
const every = 10 * time.Minute

// Loop calls Run every 10 minutes until ctx ends.
func (r *Retention) Loop(ctx context.Context) {
	loop.Every(ctx, every, func(ctx context.Context) error {
		_, err := r.Run(ctx)
		return err
	}, func(err error) { r.log.Error("partitions cannot be maintained", "error", err) })
}

// Done counts what one run did.
type Done struct {
	Dropped []string // names of partitions
	Held    []string // older than their retention, and needed or busy
}

// Run creates the partitions of the coming months and drops those that are older than
// their retention, by the clock of the database. A partition that fails does not stop the
// others. Any number of processes may run it.
func (r *Retention) Run(ctx context.Context) (done Done, failed error) {
	now, err := migrations.Now(ctx, r.pool)
	if err != nil {
		return done, err
	}
	if err := migrations.Partitions(ctx, r.pool, now); err != nil {
		failed = err // the old ones are dropped all the same
	}
	rule, err := readRule(ctx, r.pool, r.cfg, true)
	if err != nil {
		return done, errors.Join(failed, err)
	}
	all, err := migrations.Months(ctx, r.pool)
	if err != nil {
		return done, errors.Join(failed, err)
	}
	for _, p := range all {
		if p.Attached && !rule.due(p, now) {
			continue
		}
		dropped, err := r.drop(ctx, p, rule)
		failed = errors.Join(failed, err)
		switch {
		case dropped:
			done.Dropped = append(done.Dropped, p.Name())
			r.metrics.dropped.WithLabelValues(p.Table).Inc()
			r.log.InfoContext(ctx, "partition dropped", "partition", p.Name(), "bytes", p.Bytes)
		case err == nil:
			done.Held = append(done.Held, p.Name())
		}
	}
	r.metrics.report(all, done, now)
	return done, failed
}

// drop detaches a partition that nothing needs, archives and drops it. A partition that
// an earlier run detached is only archived and dropped. The contents of direct notifications
// leave before their partition is dropped, so that a later run continues.
func (r *Retention) drop(ctx context.Context, p migrations.Partition, rule rule) (bool, error) {
	if rule.leaves() {
		return false, nil
	}
	if p.Attached {
		detached, err := r.detach(ctx, p, rule)
		if err != nil || !detached {
			return false, err
		}
	}
	if r.cfg.Archive != nil {
		if err := r.cfg.Archive(ctx, p); err != nil {
			return false, fmt.Errorf("archive %s: %w", p.Name(), err)
		}
	}
	if p.Table == "notifications" {
		if err := r.deleteContents(ctx, p); err != nil {
			return false, err
		}
	}
	return migrations.Drop(ctx, r.pool, p, func(ctx context.Context, tx pgx.Tx) (bool, error) {
		rule, err := readRule(ctx, tx, r.cfg, true)
		return rule.leaves(), err
	})
}

// tries is how often one run tries to lock a busy table, a second apart.
const tries = 5

func (r *Retention) detach(ctx context.Context, p migrations.Partition, rule rule) (bool, error) {
	kept := rule.kept()[p.Table]
	if use, err := useOf(ctx, r.pool, p, kept); err != nil || use != "" {
		return false, err
	}
	for range tries {
		detached, err := migrations.Detach(ctx, r.pool, p, func(ctx context.Context, tx pgx.Tx) (bool, error) {
			now, err := migrations.Now(ctx, tx) // that of the list may be of a wrong clock
			if err != nil {
				return true, err
			}
			if rule, err := readRule(ctx, tx, r.cfg, true); err != nil || rule.leaves() || !rule.due(p, now) {
				return true, err
			}
			return begins(ctx, tx, p, kept)
		})
		if !errors.Is(err, migrations.ErrBusy) {
			return detached, err
		}
		select {
		case <-ctx.Done():
			return false, context.Cause(ctx)
		case <-time.After(time.Second):
		}
	}
	r.log.InfoContext(ctx, "partition not dropped, since its table is busy", "partition", p.Name())
	return false, nil
}

// ahead is how many months after now's all tables have partitions for.
func ahead(all []migrations.Partition, now time.Time) int {
	month := time.Date(now.UTC().Year(), now.UTC().Month(), 1, 0, 0, 0, 0, time.UTC)
	for n := 0; ; n++ {
		next := month.AddDate(0, n+1, 0)
		for _, table := range migrations.Partitioned() {
			if !slices.ContainsFunc(all, func(p migrations.Partition) bool { return p.Attached && p.Table == table && p.Month.Equal(next) }) {
				return n
			}
		}
	}
}

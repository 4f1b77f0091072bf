package campaigns

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"lemma"
	"lemma/abtest"
)

// Tally has the numbers of a variant, or of the holdout, until a time.
type Tally struct {
	At         time.Time
	Ordinal    int   // of the variant; -1: the holdout
	Recipients int64 // profiles that were assigned, whether they were sent to or not
	Sent       int64
	Failed     int64
	Skipped    int64
	Converted  *int64 // nil: without a metric
	Excluded   int64  // opened or clicked by machines only, where the metric counts opens or clicks

	Delivered    int64 // as carriers reported it
	Opens        int64 // notifications that were opened, without those that machines opened
	Clicks       int64 // notifications in which a link was clicked, without machines
	Unsubscribes int64
	Complaints   int64

	Written int64 // notifications: sent, failed, skipped, and those that wait
}

// count has the recipients and those that converted.
func (t Tally) count() abtest.Count {
	return abtest.Count{Recipients: t.Recipients, Converted: *t.Converted}
}

// measure reads the numbers of all variants at a time, and then those of the holdout.
// Conversions before that time count.
func (c *Campaigns) measure(ctx context.Context, it Iteration, until time.Time) ([]Tally, error) {
	all := make([]Tally, len(it.Variants)+1)
	for i := range all {
		all[i] = Tally{At: until, Ordinal: i}
	}
	all[len(it.Variants)].Ordinal = holdout
	if it.Metric == nil {
		return all[:len(it.Variants)], c.readCounts(ctx, it, all)
	}
	var m *members
	work, both := errgroup.WithContext(ctx)
	work.Go(func() error { return c.readCounts(both, it, all) })
	work.Go(func() (err error) { m, err = c.readConverted(both, it, until); return err })
	err := work.Wait()
	if err != nil {
		return nil, err
	}
	m.count(all)
	if it.Metric.tracked() {
		err = c.readEngaged(ctx, it, until, m.several, all)
	}
	return all, err
}

// holdout is the ordinal of the holdout.
const holdout = -1

// readCounts reads what was sent to the recipients of each variant, and what they did.
func (c *Campaigns) readCounts(ctx context.Context, it Iteration, all []Tally) error {
	if err := c.readSent(ctx, it, all); err != nil {
		return fmt.Errorf("count notifications of iteration %s: %w", it.ID, err)
	}
	if err := c.readReported(ctx, it, all); err != nil {
		return fmt.Errorf("count what recipients of iteration %s did: %w", it.ID, err)
	}
	return nil
}

// readSent adds up the batches of each variant.
func (c *Campaigns) readSent(ctx context.Context, it Iteration, all []Tally) error {
	rows, err := c.pool.Query(ctx, `
		select r.i::int - 1, coalesce(sum(b.size) filter (where b.attempt = 1), 0)::bigint, coalesce(sum(b.sent), 0)::bigint,
			coalesce(sum(b.failed + b.orphaned), 0)::bigint, coalesce(sum(b.skipped), 0)::bigint
		from unnest($3::uuid[]) with ordinality as r (content_id, i)
		join batches b on b.workspace_id = $1 and b.origin_id = $2 and b.content_id = r.content_id
		group by r.i`, it.WorkspaceID, it.CampaignID, it.contents())
	if err != nil {
		return err
	}
	var i int
	var t Tally
	_, err = pgx.ForEachRow(rows, []any{&i, &t.Recipients, &t.Sent, &t.Failed, &t.Skipped}, func() error {
		t.At, t.Ordinal, t.Written = all[i].At, i, t.Recipients
		all[i] = t
		return nil
	})
	return err
}

// readReported reads what carriers reported of the notifications of each variant, and what
// their recipients did, until now.
func (c *Campaigns) readReported(ctx context.Context, it Iteration, all []Tally) error {
	rows, err := c.pool.Query(ctx, `
		select r.i::int - 1, d.delivered, d.complaints,
			coalesce(e.unique_opens, 0), coalesce(e.unique_clicks, 0), coalesce(e.unsubscribes, 0)
		from unnest($3::uuid[]) with ordinality as r (content_id, i)
		cross join lateral (
			select coalesce(sum(d.count) filter (where d.state in ('delivered', 'complained')), 0)::bigint as delivered,
				coalesce(sum(d.count) filter (where d.state = 'complained'), 0)::bigint as complaints
			from delivery_counts d where d.workspace_id = $1 and d.origin_id = $2 and d.content_id = r.content_id
		) d
		left join engagement_counts e on e.workspace_id = $1 and e.origin_id = $2 and e.content_id = r.content_id`,
		it.WorkspaceID, it.CampaignID, it.contents())
	if err != nil {
		return err
	}
	var i int
	var t Tally
	_, err = pgx.ForEachRow(rows, []any{&i, &t.Delivered, &t.Complaints, &t.Opens, &t.Clicks, &t.Unsubscribes}, func() error {
		one := &all[i]
		one.Delivered, one.Complaints, one.Opens, one.Clicks, one.Unsubscribes = t.Delivered, t.Complaints, t.Opens, t.Clicks, t.Unsubscribes
		return nil
	})
	return err
}

// MeasureDue measures the results of iterations that are due, and waits: about 50 times
// until the cut-off, and seldom if a measurement takes long.
func (c *Campaigns) MeasureDue(ctx context.Context) (n int, err error) {
	return waitFor(ctx, c.startMeasurements)
}

// startMeasurements is MeasureDue, and does not wait.
func (c *Campaigns) startMeasurements(ctx context.Context) (wait func() (int, error), err error) {
	due, err := c.refs(ctx, `
		select i.workspace_id, i.id from iterations i where i.status in ('sampling', 'running') and i.measure_at <= now()
		order by row_number() over (partition by i.workspace_id order by i.measure_at), random() limit 100`)
	if err != nil {
		return nil, fmt.Errorf("find iterations to measure: %w", err)
	}
	return startDue(ctx, c.measuring, due, func(ctx context.Context, r ref) (bool, error) {
		done, err := c.measureOne(ctx, r)
		if err != nil {
			err = fmt.Errorf("measure iteration %s: %w", r.ID, err)
		}
		return done, err
	}), nil
}

// measureOne stores the results of an iteration if no other process does so at this
// time. An error is met again at the next time; the verdict measures anew.
func (c *Campaigns) measureOne(ctx context.Context, r ref) (bool, error) {
	tag, err := c.pool.Exec(ctx, `
		update iterations set measure_at = now() + case when metric is null then interval '15 minutes' else
			greatest((cut_off_at - started_at) / 50, case when metric = 'sql' then interval '1 minute' else $3 end) end
		where workspace_id = $1 and id = $2 and status in ('sampling', 'running') and measure_at <= now()`,
		r.WorkspaceID, r.ID, c.cfg.MeasureEvery)
	if err != nil || tag.RowsAffected() == 0 {
		return false, err
	}
	it, err := c.GetIteration(ctx, r.WorkspaceID, r.ID)
	if err != nil {
		return false, err
	}
	begun := time.Now()
	until, err := c.measureTime(ctx, it)
	if err != nil || it.CutOffAt != nil && !until.Before(*it.CutOffAt) { // the verdict has the numbers of the cut-off
		return false, err
	}
	all, err := c.measure(ctx, it, until)
	if err != nil {
		if lemma.KindOf(err) != lemma.Internal {
			c.log.Warn("results could not be measured", "iteration_id", it.ID, "error", err)
			return false, nil
		}
		return false, err
	}
	if err := storeResults(ctx, c.pool, it, all); err != nil {
		return false, err
	}
	_, err = c.pool.Exec(ctx, `
		update iterations set measure_at = greatest(measure_at, now() + $3)
		where workspace_id = $1 and id = $2 and status in ('sampling', 'running')`, r.WorkspaceID, r.ID, 20*time.Since(begun))
	return true, err
}

// Present has the numbers of a split now: it has no cut-off, and its recipients open and
// click after the last measurement. It is empty for an experiment with a metric, whose
// numbers end at the cut-off, and before the start.
func (c *Campaigns) Present(ctx context.Context, it Iteration) ([]Tally, error) {
	if it.Metric != nil || it.StartedAt == nil {
		return nil, nil
	}
	now, err := c.measureTime(ctx, it)
	if err != nil {
		return nil, err
	}
	return c.measure(ctx, it, now)
}

// measureTime is the time of the database, or the cut-off if it has passed.
func (c *Campaigns) measureTime(ctx context.Context, it Iteration) (until time.Time, err error) {
	err = c.pool.QueryRow(ctx, `select least(now(), $1::timestamptz)`, it.CutOffAt).Scan(&until)
	return until, err
}

// batcher is a pool or a transaction.
type batcher interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// storeResults appends what was measured. The same time is stored once.
func storeResults(ctx context.Context, db batcher, it Iteration, all []Tally) error {
	var batch pgx.Batch
	for _, t := range all {
		if t.Ordinal == holdout && it.HoldoutPercent == 0 {
			continue
		}
		batch.Queue(`
			insert into iteration_results (workspace_id, iteration_id, at, ordinal, recipients, sent, failed, skipped, converted, excluded,
				delivered, opens, clicks, unsubscribes, complaints, written)
			values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)
			on conflict (workspace_id, iteration_id, at, ordinal) do nothing`,
			it.WorkspaceID, it.ID, t.At, t.Ordinal, t.Recipients, t.Sent, t.Failed, t.Skipped, t.Converted, t.Excluded,
			t.Delivered, t.Opens, t.Clicks, t.Unsubscribes, t.Complaints, t.Written)
	}
	if err := db.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("store results of iteration %s: %w", it.ID, err)
	}
	return nil
}

// Results are the measurements of an iteration, in the order of time, and of each time
// by the ordinal of the variant.
func (c *Campaigns) Results(ctx context.Context, workspaceID, id uuid.UUID) ([]Tally, error) {
	rows, _ := c.pool.Query(ctx, `
		select at, ordinal::int, recipients, sent, failed, skipped, converted, excluded, delivered, opens, clicks, unsubscribes, complaints,
			written
		from iteration_results
		where workspace_id = $1 and iteration_id = $2 order by at, ordinal`, workspaceID, id)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Tally])
	if err != nil {
		return nil, fmt.Errorf("read results of iteration %s: %w", id, err)
	}
	return all, nil
}

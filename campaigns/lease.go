package campaigns

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/fence"
	"lemma/loop"
)

// lease is the right of one run to read a campaign's audience. Every write of
// the run repeats the token: one whose lease has gone to another changes
// nothing, however late it comes to know (Campaign!FailedMeansUnread).
type lease struct {
	workspaceID, campaignID uuid.UUID
	token                   string
}

// claimFanout takes the lease, or answers run 0 and how long to wait before the
// next try, 0 when this job has nothing more to do. Claims of one workspace
// take turns, so that two of them cannot both take its last place.
func (c *Campaigns) claimFanout(ctx context.Context, l lease) (run int, again time.Duration, err error) {
	err = pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) (err error) {
		if _, err = tx.Exec(ctx, `select pg_advisory_xact_lock($1)`, lockKey(l.workspaceID)); err != nil {
			return err
		}
		now, err := c.standing(ctx, tx, l)
		switch {
		case err != nil || !now.Working || now.Leased:
			return err
		case now.Wait > 0:
			again = seconds(now.Wait)
			return nil
		case now.InWorkspace >= c.cfg.PerWorkspace || now.OfSource >= c.cfg.PerSource:
			again = queueFor(now.Queued)
			return c.queue(ctx, tx, l, now)
		}
		run, err = c.take(ctx, tx, l)
		return err
	})
	if err != nil {
		return 0, 0, fmt.Errorf("claim fan-out of %s: %w", l.campaignID, err)
	}
	return run, again, nil
}

// standing is what a claim goes by, as of now.
type standing struct {
	Working     bool    // the campaign is being sent, and its audience was not read to the end
	Leased      bool    // a run holds the lease
	Wait        float64 // seconds until a source that failed may be tried again
	InWorkspace int     // audiences of the workspace that are being read
	OfSource    int     // of these, those on the same data source
	Queued      int     // campaigns of the workspace whose audience waits to be read
}

type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func (c *Campaigns) standing(ctx context.Context, q querier, l lease) (standing, error) {
	rows, err := q.Query(ctx, `
		select c.status in ('preparing', 'sending') and f.finished_at is null, coalesce(f.lease_until >= now(), false),
			greatest(extract(epoch from f.retry_at - now()), 0)::float8,
			(select count(*) from fanouts o where o.workspace_id = $1 and o.leased_by is not null and o.lease_until >= now())::int,
			(select count(*) from fanouts o
				join campaigns oc on oc.workspace_id = o.workspace_id and oc.id = o.campaign_id
				join audiences oa on oa.workspace_id = oc.workspace_id and oa.id = oc.audience_id
				where o.workspace_id = $1 and o.leased_by is not null and o.lease_until >= now() and oa.data_source_id = a.data_source_id)::int,
			(select count(*) from campaigns oc where oc.workspace_id = $1 and oc.status in ('preparing', 'sending') and oc.status_reason = $3)::int
		from campaigns c
		join fanouts f on f.workspace_id = c.workspace_id and f.campaign_id = c.id
		join audiences a on a.workspace_id = c.workspace_id and a.id = c.audience_id
		where c.workspace_id = $1 and c.id = $2`, l.workspaceID, l.campaignID, queued)
	if err != nil {
		return standing{}, err
	}
	now, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[standing])
	if errors.Is(err, pgx.ErrNoRows) { // it was never sent
		return standing{}, nil
	}
	return now, err
}

// take is the compare-and-set of the claim.
func (c *Campaigns) take(ctx context.Context, tx pgx.Tx, l lease) (run int, err error) {
	err = tx.QueryRow(ctx, `
		update fanouts f set leased_by = $3, lease_until = now() + $4, runs = runs + 1
		from campaigns c
		where f.workspace_id = $1 and f.campaign_id = $2 and f.finished_at is null and f.retry_at <= now()
		  and f.leased_by is null
		  and c.workspace_id = f.workspace_id and c.id = f.campaign_id and c.status in ('preparing', 'sending')
		returning f.runs`, l.workspaceID, l.campaignID, l.token, c.cfg.Lease).Scan(&run)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	_, err = tx.Exec(ctx, `
		update campaigns set status_reason = null, status_detail = null
		where workspace_id = $1 and id = $2 and status_reason = $3`, l.workspaceID, l.campaignID, queued)
	return run, err
}

// queued is the status_reason of a campaign whose audience waits for others to
// be read first.
const queued = "fanout_queued"

// queue shows on the campaign that it waits, and for what.
func (c *Campaigns) queue(ctx context.Context, tx pgx.Tx, l lease, now standing) error {
	limit, detail := "workspace", fmt.Sprintf("%d audiences of the workspace are being read; this one follows", now.InWorkspace)
	if now.OfSource >= c.cfg.PerSource {
		limit, detail = "source", fmt.Sprintf("%d audiences of the data source are being read; this one follows", now.OfSource)
	}
	c.metrics.queued.WithLabelValues(limit).Inc()
	_, err := tx.Exec(ctx, `
		update campaigns set status_reason = $3, status_detail = $4
		where workspace_id = $1 and id = $2 and status in ('preparing', 'sending') and status_reason is null`, l.workspaceID, l.campaignID, queued, detail)
	return err
}

// queueFor spreads the tries of those that wait at random, some fifty in a
// second for each workspace: in which order they come is left to chance.
func queueFor(waiting int) time.Duration {
	each := max(500*time.Millisecond, time.Duration(waiting)*20*time.Millisecond)
	return each/2 + time.Duration(rand.Int64N(int64(each)))
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// holdLease renews the lease while the run goes on, and stops the run when the
// lease has expired or is another's.
func (c *Campaigns) holdLease(ctx context.Context, stop context.CancelFunc, l lease) {
	fence.Renew(ctx, c.pool, c.cfg.Lease, stop, c.failed("renew fan-out"), `
		update fanouts set lease_until = now() + $4
		where workspace_id = $1 and campaign_id = $2 and leased_by = $3 and lease_until >= now()`,
		l.workspaceID, l.campaignID, l.token, c.cfg.Lease)
}

// watchCampaign stops the run soon after the campaign was paused or cancelled,
// also while the data source keeps silent and no chunk comes to find it out.
func (c *Campaigns) watchCampaign(ctx context.Context, stop context.CancelFunc, l lease) {
	loop.Every(ctx, c.cfg.TickEvery, func(ctx context.Context) error {
		var working bool
		err := c.pool.QueryRow(ctx, `select status in ('preparing', 'sending') from campaigns where workspace_id = $1 and id = $2`,
			l.workspaceID, l.campaignID).Scan(&working)
		if err == nil && !working {
			stop()
		}
		return err
	}, c.failed("watch"))
}

// wroteChunk is true of the fan-out f if its present run has written a chunk. What
// failed before then no longer counts.
const wroteChunk = `exists (select from fanout_chunks k where k.workspace_id = f.workspace_id and k.origin_id = f.campaign_id and k.run = f.runs)`

// release is how a run ends before the end of its audience.
type release struct {
	after                        time.Duration // before the next run
	sourceFailed, internalFailed bool
}

// releaseFanout gives the lease back. It answers false when it was another's.
func (c *Campaigns) releaseFanout(ctx context.Context, l lease, r release) (held bool, err error) {
	tag, err := c.pool.Exec(ctx, `
		update fanouts f set leased_by = null, lease_until = null, retry_at = now() + $4,
			source_failures = case when w.wrote then 0 else source_failures end + $5::boolean::int,
			internal_failures = case when w.wrote then 0 else internal_failures end + $6::boolean::int
		from (select `+wroteChunk+` as wrote from fanouts f where workspace_id = $1 and campaign_id = $2) w
		where workspace_id = $1 and campaign_id = $2 and leased_by = $3`,
		l.workspaceID, l.campaignID, l.token, r.after, r.sourceFailed, r.internalFailed)
	if err != nil {
		return false, fmt.Errorf("release fan-out of %s: %w", l.campaignID, err)
	}
	return c.wasHeld(l, tag.RowsAffected()), nil
}

// handBack ends a run before the end of its audience, also while the program
// shuts down: the campaign was stopped, or the run. When the campaign is still
// being sent, or again, the job stays, so that another node goes on at once.
func (c *Campaigns) handBack(l lease) (again time.Duration, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), unheldTime)
	defer cancel()
	if _, err := c.releaseFanout(ctx, l, release{}); err != nil {
		return 0, err
	}
	now, err := c.standing(ctx, c.pool, l)
	if err != nil || !now.Working || now.Leased {
		return 0, err
	}
	return max(seconds(now.Wait), time.Millisecond), nil
}

// unheldTime is for what must be written although the caller is shutting down.
const unheldTime = 5 * time.Second

// finishFanout writes down that the audience was read to its end.
func (c *Campaigns) finishFanout(ctx context.Context, l lease, read int64) error {
	tag, err := c.pool.Exec(ctx, `
		update fanouts set finished_at = now(), rows_read = $4, leased_by = null, lease_until = null
		where workspace_id = $1 and campaign_id = $2 and leased_by = $3`, l.workspaceID, l.campaignID, l.token, read)
	if err != nil {
		return fmt.Errorf("finish fan-out of %s: %w", l.campaignID, err)
	}
	c.wasHeld(l, tag.RowsAffected())
	return nil
}

// sourceFailed decides what a failed run means. A source that does not answer
// is tried again a few times in a row, an error of Lemma's own more often. A run
// that wrote a chunk begins the count anew. Everything else, and what still fails
// then, fails the campaign closed, with the reason.
func (c *Campaigns) sourceFailed(ctx context.Context, l lease, cause error) (time.Duration, error) {
	kind := lemma.KindOf(cause)
	var ofSource, internal int
	err := c.pool.QueryRow(ctx, `
		select case when w.wrote then 0 else f.source_failures end, case when w.wrote then 0 else f.internal_failures end
		from fanouts f cross join lateral (select `+wroteChunk+` as wrote) w
		where f.workspace_id = $1 and f.campaign_id = $2`, l.workspaceID, l.campaignID).Scan(&ofSource, &internal)
	if err != nil {
		return 0, fmt.Errorf("count failures of fan-out %s: %w", l.campaignID, err)
	}
	if kind == lemma.Unavailable && ofSource < c.cfg.Retries {
		after := c.cfg.RetryFor << ofSource
		c.log.Warn("data source failed, fan-out will be tried again", "campaign_id", l.campaignID, "failures", ofSource+1, "after", after, "error", cause)
		return c.tryAgain(ctx, l, release{after: after, sourceFailed: true})
	}
	if kind == lemma.Internal && internal < internalRetries {
		c.log.Error("fan-out failed, it will be tried again", "campaign_id", l.campaignID, "failures", internal+1, "error", cause)
		return c.tryAgain(ctx, l, release{after: c.cfg.RetryFor, internalFailed: true})
	}
	reason := reasonOf(cause)
	c.log.Error("campaign failed", "campaign_id", l.campaignID, "reason", reason, "error", cause)
	return 0, c.fail(ctx, l, reason, lemma.Public(cause))
}

func (c *Campaigns) tryAgain(ctx context.Context, l lease, r release) (time.Duration, error) {
	held, err := c.releaseFanout(ctx, l, r)
	if err != nil || !held {
		return 0, err
	}
	return r.after, nil
}

// internalRetries: a fault of our own, such as a database that restarts, gets
// many more tries than a source, and not endless ones.
const internalRetries = 20

func reasonOf(err error) string {
	var e *lemma.Error
	switch {
	case !errors.As(err, &e):
		return string(lemma.Internal)
	case e.Code != "":
		return e.Code
	}
	return string(e.Kind)
}

// fail closes a campaign that cannot be gone on with, in the name of the run
// that found it out and still holds the lease: giving that back is the first
// statement, and its row stays locked until the rest is done. What was sent
// stays sent; what was not yet called never will be.
func (c *Campaigns) fail(ctx context.Context, l lease, reason, detail string) error {
	err := pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
		if err := lockForVerb(ctx, tx, l.campaignID); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `
			update fanouts set leased_by = null, lease_until = null
			where workspace_id = $1 and campaign_id = $2 and leased_by = $3 and finished_at is null`, l.workspaceID, l.campaignID, l.token)
		if err != nil || !c.wasHeld(l, tag.RowsAffected()) {
			return err
		}
		err = move(ctx, tx, l.workspaceID, l.campaignID, fail, `status = 'failed', status_reason = $4, status_detail = $5, finished_at = now()`, reason, detail)
		if err != nil {
			return err
		}
		_, err = c.ledger.Cancel(ctx, tx, l.workspaceID, l.campaignID)
		return err
	})
	if lemma.KindOf(err) == lemma.WrongStatus { // cancelled meanwhile: that stands
		_, err = c.releaseFanout(ctx, l, release{})
	}
	if err != nil {
		return fmt.Errorf("fail campaign %s: %w", l.campaignID, err)
	}
	return nil
}

// wasHeld says whether a write of a run found its lease.
func (c *Campaigns) wasHeld(l lease, rows int64) bool {
	if rows == 0 {
		c.metrics.lost.Inc()
		c.log.Warn("fan-out lost its lease and changes nothing", "campaign_id", l.campaignID, "token", l.token)
	}
	return rows > 0
}

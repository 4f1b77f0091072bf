package campaigns

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/eventsout"
	"lemma/fence"
	"lemma/loop"
)

// lease is the lease of one run on the fan-out of a campaign. Every write of the
// run has the token in its condition: a run that has lost its lease changes
// nothing (Campaign!FailedMeansUnread).
type lease struct {
	workspaceID, campaignID uuid.UUID
	token                   string
}

// claimFanout acquires the lease. If it cannot, run is 0, and again is the time
// until the next attempt, or 0 if the job is done. Claims of one workspace run one
// after another, so that they do not exceed PerWorkspace.
func (c *Campaigns) claimFanout(ctx context.Context, l lease) (run int, again time.Duration, err error) {
	err = pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) (err error) {
		if _, err = tx.Exec(ctx, `select pg_advisory_xact_lock($1)`, lockKey(l.workspaceID)); err != nil {
			return err
		}
		now, err := c.readState(ctx, tx, l)
		switch {
		case err != nil || !now.Working || now.Leased:
			return err
		case now.Wait > 0:
			again = seconds(now.Wait)
			return nil
		case now.InWorkspace >= c.cfg.PerWorkspace || now.OfSource >= c.cfg.PerSource:
			again = queueDelay(now.Queued)
			return c.showQueued(ctx, tx, l, now)
		}
		run, err = c.acquire(ctx, tx, l)
		return err
	})
	return run, again, lemma.Wrap(err, "claim fan-out of %s", l.campaignID)
}

// fanoutState is the state that a claim depends on.
type fanoutState struct {
	Working     bool    // the campaign is being sent, and its audience has not been read to the end
	Leased      bool    // a run holds the lease
	Wait        float64 // seconds until a source that failed may be read again
	InWorkspace int     // audiences of the workspace that are being read
	OfSource    int     // of these, those on the same data source
	Queued      int     // campaigns of the workspace that wait for a limit
}

// The audiences that are being read, of the workspace of a campaign c and of the data source of its audience a.
const (
	readInWorkspace = `(select count(*) from fanouts o
				where o.workspace_id = c.workspace_id and o.leased_by is not null and o.lease_until >= now())`
	readOfSource = `(select count(*) from fanouts o
				join campaigns oc on oc.workspace_id = o.workspace_id and oc.id = o.campaign_id
				join audiences oa on oa.workspace_id = oc.workspace_id and oa.id = oc.audience_id
				where o.workspace_id = c.workspace_id and o.leased_by is not null and o.lease_until >= now()
					and oa.data_source_id = a.data_source_id)`
)

type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func (c *Campaigns) readState(ctx context.Context, q querier, l lease) (fanoutState, error) {
	rows, _ := q.Query(ctx, `
		select c.status in ('preparing', 'sending') and f.finished_at is null, coalesce(f.lease_until >= now(), false),
			greatest(extract(epoch from f.retry_at - now()), 0)::float8,
			`+readInWorkspace+`::int, `+readOfSource+`::int,
			(select count(*) from campaigns oc
				where oc.workspace_id = $1 and oc.status in ('preparing', 'sending') and oc.status_reason = $3)::int
		from campaigns c
		join fanouts f on f.workspace_id = c.workspace_id and f.campaign_id = c.id
		join audiences a on a.workspace_id = c.workspace_id and a.id = c.audience_id
		where c.workspace_id = $1 and c.id = $2`, l.workspaceID, l.campaignID, queued)
	now, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[fanoutState])
	if errors.Is(err, pgx.ErrNoRows) { // the campaign has not been sent
		return fanoutState{}, nil
	}
	return now, err
}

// acquire acquires the lease if it is free. Otherwise run is 0.
func (c *Campaigns) acquire(ctx context.Context, tx pgx.Tx, l lease) (run int, err error) {
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
		where workspace_id = $1 and id = $2 and status_reason = any($3)`, l.workspaceID, l.campaignID, []string{queued, string(lemma.Internal)})
	return run, err
}

// queued is the status_reason of a campaign whose fan-out waits for a limit.
const queued = "fanout_queued"

// showQueued records on the campaign that its fan-out waits, and for which limit.
func (c *Campaigns) showQueued(ctx context.Context, tx pgx.Tx, l lease, now fanoutState) error {
	limit, detail := "workspace", fmt.Sprintf("%d audiences of the workspace are being read; this one waits", now.InWorkspace)
	if now.OfSource >= c.cfg.PerSource {
		limit, detail = "source", fmt.Sprintf("%d audiences of the data source are being read; this one waits", now.OfSource)
	}
	c.metrics.queued.WithLabelValues(limit).Inc()
	_, err := tx.Exec(ctx, `
		update campaigns set status_reason = $3, status_detail = $4
		where workspace_id = $1 and id = $2 and status in ('preparing', 'sending') and status_reason is null`,
		l.workspaceID, l.campaignID, queued, detail)
	return err
}

// queueDelay is the random time until a fan-out that waits is claimed again. It
// bounds these claims to about 50 per second and workspace.
func queueDelay(waiting int) time.Duration {
	each := max(500*time.Millisecond, time.Duration(waiting)*20*time.Millisecond)
	return loop.Jitter(each)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// holdLease renews the lease while the run continues, and stops the run when the
// lease has expired or is another's.
func (c *Campaigns) holdLease(ctx context.Context, stop context.CancelFunc, l lease) {
	fence.Renew(ctx, c.pool, c.cfg.Lease, stop, c.failed("renew fan-out"), `
		update fanouts set lease_until = now() + $4
		where workspace_id = $1 and campaign_id = $2 and leased_by = $3 and lease_until >= now()`,
		l.workspaceID, l.campaignID, l.token, c.cfg.Lease)
}

// watchCampaign stops the run when the campaign is paused or cancelled, even while
// the data source does not respond and no chunk is written.
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
const wroteChunk = `exists (select from fanout_chunks k
	where k.workspace_id = f.workspace_id and k.origin_id = f.campaign_id and k.run = f.runs)`

// release is how a run ends before the end of its audience.
type release struct {
	after                        time.Duration // before the next run
	sourceFailed, internalFailed bool
}

// releaseFanout releases the lease. It returns false if the run had lost it.
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

// releaseUnfinished releases the lease of a run that was stopped before the end of
// its audience, possibly by a shutdown. While the campaign is being sent, the job
// is kept, so that another process continues at once.
func (c *Campaigns) releaseUnfinished(l lease) (again time.Duration, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTime)
	defer cancel()
	if _, err := c.releaseFanout(ctx, l, release{}); err != nil {
		return 0, err
	}
	now, err := c.readState(ctx, c.pool, l)
	if err != nil || !now.Working || now.Leased {
		return 0, err
	}
	return max(seconds(now.Wait), time.Millisecond), nil
}

// cleanupTime bounds writes after the context of the caller has ended.
const cleanupTime = 5 * time.Second

// finishFanout records that the audience was read to its end.
func (c *Campaigns) finishFanout(ctx context.Context, l lease, read int64, profiles *int64) error {
	err := pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			update fanouts set finished_at = now(), rows_read = $4, profiles = $5, leased_by = null, lease_until = null
			where workspace_id = $1 and campaign_id = $2 and leased_by = $3`, l.workspaceID, l.campaignID, l.token, read, profiles)
		if err != nil || !c.wasHeld(l, tag.RowsAffected()) {
			return err
		}
		return sampled(ctx, tx, l.workspaceID, l.campaignID)
	})
	if err == nil {
		c.BatchEnded(l.workspaceID, l.campaignID)
	}
	return lemma.Wrap(err, "finish fan-out of %s", l.campaignID)
}

// countProfiles counts the profiles of a push campaign, once its notifications are
// written: a profile has one for each of its tokens. It is nil for other channels,
// whose hot path it would slow down. The statement has more time than others: all
// notifications of the campaign are read.
func (c *Campaigns) countProfiles(ctx context.Context, l lease) (profiles *int64, err error) {
	ctx, stop := context.WithTimeout(ctx, c.cfg.CountFor)
	defer stop()
	err = pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `set local statement_timeout = 0`); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `
			select case when o.channel = 'push' then (
				select count(distinct n.profile_key) from notifications n where n.workspace_id = $1 and n.origin_id = $2) end
			from contents o where o.workspace_id = $1 and o.id = $2`, l.workspaceID, l.campaignID).Scan(&profiles)
	})
	return profiles, lemma.Wrap(err, "count profiles of %s", l.campaignID)
}

// sourceFailed decides what a failed run means. A source that does not answer
// is tried again a few times in a row. A run that wrote a chunk begins the count anew. Everything
// else of a source, and what still fails then, fails the campaign closed, with the reason.
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
		c.log.Warn("data source failed, fan-out will be retried", "campaign_id", l.campaignID, "failures", ofSource+1, "after", after,
			"error", cause)
		return c.retryLater(ctx, l, release{after: after, sourceFailed: true})
	}
	if kind == lemma.Internal {
		return c.internalFailed(ctx, l, internal+1, cause)
	}
	reason := reasonOf(cause)
	c.log.Error("campaign failed", "campaign_id", l.campaignID, "reason", reason, "error", cause)
	return 0, c.fail(ctx, l, reason, lemma.Public(cause))
}

func (c *Campaigns) retryLater(ctx context.Context, l lease, r release) (time.Duration, error) {
	held, err := c.releaseFanout(ctx, l, r)
	if err != nil || !held {
		return 0, err
	}
	return r.after, nil
}

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

// fail sets a campaign to failed and cancels its pending notifications, if the run
// still holds the lease. Releasing it is the first statement, so its row is locked
// until the transaction ends.
func (c *Campaigns) fail(ctx context.Context, l lease, reason, detail string) error {
	err := pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
		if err := lockForVerb(ctx, tx, l.campaignID); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `
			update fanouts set leased_by = null, lease_until = null
			where workspace_id = $1 and campaign_id = $2 and leased_by = $3 and finished_at is null`,
			l.workspaceID, l.campaignID, l.token)
		if err != nil || !c.wasHeld(l, tag.RowsAffected()) {
			return err
		}
		err = move(ctx, tx, l.workspaceID, l.campaignID, fail,
			`status = 'failed', status_reason = $4, status_detail = $5, finished_at = now()`, reason, detail)
		if err != nil {
			return err
		}
		if _, err = c.ledger.Cancel(ctx, tx, l.workspaceID, l.campaignID); err != nil {
			return err
		}
		if err := recordEvent(ctx, tx, l.workspaceID, l.campaignID, eventsout.CampaignFailed, reason, detail); err != nil {
			return err
		}
		return cancelIteration(ctx, tx, l.workspaceID, l.campaignID, "campaign_failed")
	})
	if lemma.KindOf(err) == lemma.WrongStatus { // the campaign was cancelled meanwhile
		_, err = c.releaseFanout(ctx, l, release{})
	}
	return lemma.Wrap(err, "fail campaign %s", l.campaignID)
}

// wasHeld reports whether a write found the lease of its run.
func (c *Campaigns) wasHeld(l lease, rows int64) bool {
	if rows == 0 {
		c.metrics.lost.Inc()
		c.log.Warn("fan-out lost its lease, its write had no effect", "campaign_id", l.campaignID, "token", l.token)
	}
	return rows > 0
}

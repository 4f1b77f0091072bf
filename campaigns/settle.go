package campaigns

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"lemma"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/eventsout"
	"lemma/loop"
)

// settleMost is how many campaigns one call of Settle checks because they are due, and as
// many because of BatchEnded. It chooses among settleAmong times as many, those that have been
// due longest.
const (
	settleMost  = 1000
	settleAmong = 5
)

// Settle completes campaigns whose audience was read to its end and whose batches
// have all ended. It reads the batches and not a counter, and reads them again
// under the lock of the campaign, since a chunk may have been written meanwhile. It checks
// the campaigns of BatchEnded and those that are due. One that cannot be completed is due
// again later, so that it does not keep others from being checked.
func (c *Campaigns) Settle(ctx context.Context) (n int, err error) {
	var failed loop.Errors
	ended, err := c.checkEnding(ctx)
	failed.Add(err)
	due, err := c.checkDue(ctx)
	failed.Add(err)
	for _, d := range due {
		if d.ended {
			ended[d.ref] = true
		}
	}
	var completed []ref
	for r := range ended {
		done := false
		err := pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) (err error) {
			done, err = settle(ctx, tx, r)
			return err
		})
		if err != nil { // one campaign that fails must not stop the others
			failed.Add(fmt.Errorf("settle campaign %s: %w", r.ID, err))
		} else if done {
			completed = append(completed, r)
		}
	}
	return len(completed), errors.Join(failed.Err(), c.postpone(ctx, due))
}

// endings are campaigns of which this process has ended a batch, or the fan-out, since the
// last check.
type endings struct {
	sync.Mutex
	of map[ref]bool
}

// BatchEnded makes the next call of Settle in this process check a campaign, so that its
// completion does not wait until it is due. It is a hint: one that is lost, or an id that is
// not of a campaign, does no harm.
func (c *Campaigns) BatchEnded(workspaceID, campaign uuid.UUID) {
	c.ending.Lock()
	defer c.ending.Unlock()
	if c.ending.of == nil {
		c.ending.of = map[ref]bool{}
	}
	if len(c.ending.of) < c.settleMost {
		c.ending.of[ref{workspaceID, campaign}] = true
	}
}

func (c *Campaigns) takeEnding() map[ref]bool {
	c.ending.Lock()
	defer c.ending.Unlock()
	of := c.ending.of
	c.ending.of = nil
	return of
}

// checkEnding returns the campaigns of BatchEnded that have ended.
func (c *Campaigns) checkEnding(ctx context.Context) (ended map[ref]bool, err error) {
	hinted := c.takeEnding()
	ended = map[ref]bool{}
	if len(hinted) == 0 {
		return ended, nil
	}
	var workspaces, ids []uuid.UUID
	for r := range hinted {
		workspaces, ids = append(workspaces, r.WorkspaceID), append(ids, r.ID)
	}
	found, err := c.refs(ctx, `
		select c.workspace_id, c.id from unnest($1::uuid[], $2::uuid[]) h (workspace_id, id)
		cross join lateral (
			select c.workspace_id, c.id from campaigns c
			where c.workspace_id = h.workspace_id and c.id = h.id and c.status in ('sending', 'paused') limit 1) c
		where `+hasEnded+` limit $3`, workspaces, ids, c.settleMost)
	for _, r := range found {
		ended[r] = true
	}
	return ended, lemma.Wrap(err, "check campaigns whose batches ended")
}

// dueCheck is a campaign that was due, as it was checked.
type dueCheck struct {
	ref
	due, next time.Time // settle_at, and when it is due again if it is not completed
	ended     bool
}

// checkDue checks the campaigns that are due. Of those that have been due longest, one of
// each workspace precedes the second of any, in random order. One that cannot be completed is
// due again:
//   - paused, while notifications wait or the audience was not read to its end: after half of
//     the time for which it has been paused, an hour at most, and at its deadline. A resume
//     makes it due.
//   - with an experiment: at its cut-off. A decision makes it due.
//   - otherwise after a tenth of the time for which it has been sending, from a second to a
//     minute. BatchEnded has it checked before.
func (c *Campaigns) checkDue(ctx context.Context) ([]dueCheck, error) {
	rows, _ := c.pool.Query(ctx, `
		select c.workspace_id, c.id, c.settle_at, case
			when `+isIdle+`
			then least(c.send_deadline, now() + least(greatest((now() - c.paused_at) / 2, interval '5 seconds'), interval '1 hour'))
			else coalesce(
				(select i.cut_off_at from iterations i where i.workspace_id = c.workspace_id and i.campaign_id = c.id
					and i.metric is not null and i.status in ('sampling', 'running') and i.cut_off_at > now()),
				now() + least(greatest((now() - greatest(c.sending_at, c.paused_at, c.resumed_at)) / 10, interval '1 second'),
					interval '1 minute'))
			end, `+hasEnded+`
		from (
			select c.workspace_id, c.id, c.status, c.settle_at, c.send_deadline, c.sending_at, c.paused_at, c.resumed_at from (
				select c.workspace_id, c.id, c.status, c.settle_at, c.send_deadline, c.sending_at, c.paused_at, c.resumed_at
				from campaigns c
				where c.status in ('sending', 'paused') and c.settle_at <= now() order by c.settle_at limit $2
			) c
			order by row_number() over (partition by c.workspace_id order by random()), random() limit $1) c`,
		c.settleMost, settleAmong*c.settleMost)
	due, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d dueCheck, err error) {
		err = row.Scan(&d.WorkspaceID, &d.ID, &d.due, &d.next, &d.ended)
		return d, err
	})
	return due, lemma.Wrap(err, "find campaigns that have ended")
}

// isIdle is true of a paused campaign c before its deadline that has notifications that wait, or
// an audience that was not read to its end.
const isIdle = `c.status = 'paused' and (c.send_deadline is null or c.send_deadline > now()) and ((select true from batches b
		where b.workspace_id = c.workspace_id and b.origin_id = c.id and b.status in ('ready', 'leased')
			and b.status || '' = 'ready' limit 1) is not null -- with the plain column it would read the due batches of all
		or coalesce((select f.finished_at is null from fanouts f
			where f.workspace_id = c.workspace_id and f.campaign_id = c.id), false))`

// postpone sets when campaigns that were checked are due again. One that a resume or a
// decision has made due since the check stays due.
func (c *Campaigns) postpone(ctx context.Context, checked []dueCheck) error {
	if len(checked) == 0 {
		return nil
	}
	n := len(checked)
	workspaces, ids, due, next := make([]uuid.UUID, n), make([]uuid.UUID, n), make([]time.Time, n), make([]time.Time, n)
	for i, d := range checked {
		workspaces[i], ids[i], due[i], next[i] = d.WorkspaceID, d.ID, d.due, d.next
	}
	_, err := c.pool.Exec(ctx, `
		with checked as (
			select c.workspace_id, c.id, d.next from unnest($1::uuid[], $2::uuid[], $3::timestamptz[], $4::timestamptz[])
				d (workspace_id, id, due, next)
			cross join lateral (
				select c.workspace_id, c.id from campaigns c where c.workspace_id = d.workspace_id and c.id = d.id
				  and c.status in ('sending', 'paused') and c.settle_at = d.due for no key update skip locked) c
			limit $5
		)
		update campaigns c set settle_at = d.next from checked d where c.workspace_id = d.workspace_id and c.id = d.id`,
		workspaces, ids, due, next, c.settleMost)
	return lemma.Wrap(err, "postpone the check of campaigns")
}

// settleNow makes a campaign due whose experiment was decided.
func settleNow(ctx context.Context, tx pgx.Tx, workspaceID, campaign uuid.UUID) error {
	_, err := tx.Exec(ctx, `update campaigns set settle_at = now() where workspace_id = $1 and id = $2`, workspaceID, campaign)
	return lemma.Wrap(err, "make campaign %s due", campaign)
}

// settle completes a campaign if it has ended.
func settle(ctx context.Context, tx pgx.Tx, r ref) (completed bool, err error) {
	if err := lockForVerb(ctx, tx, r.ID); err != nil {
		return false, err
	}
	tag, err := tx.Exec(ctx, `
		update campaigns c set status = 'completed', status_reason = null, status_detail = null,
			version = version + 1, updated_at = now(),
			finished_at = greatest(
				(select max(b.finished_at) from batches b where b.workspace_id = c.workspace_id and b.origin_id = c.id),
				(select f.finished_at from fanouts f where f.workspace_id = c.workspace_id and f.campaign_id = c.id),
				(select max(l.at) from iterations i join iteration_log l on l.workspace_id = i.workspace_id and l.iteration_id = i.id
					where i.workspace_id = c.workspace_id and i.campaign_id = c.id))
		where c.workspace_id = $1 and c.id = $2 and c.status in ('sending', 'paused')
		  and `+hasEnded, r.WorkspaceID, r.ID)
	if err != nil || tag.RowsAffected() == 0 {
		return false, err
	}
	if err := completeIteration(ctx, tx, r.WorkspaceID, r.ID); err != nil {
		return false, err
	}
	return true, recordEvent(ctx, tx, r.WorkspaceID, r.ID, eventsout.CampaignCompleted, "", "")
}

// hasEnded is true of a campaign c that is sending or paused, whose audience was read
// and whose batches have ended. The subqueries have one value, since for "exists" and "not
// exists" they may read the rows of all campaigns.
const hasEnded = `((select f.finished_at from fanouts f where f.workspace_id = c.workspace_id and f.campaign_id = c.id) is not null
	and (select true from batches b
		where b.workspace_id = c.workspace_id and b.origin_id = c.id and b.status in ('ready', 'leased') limit 1) is null
	and not ` + undecided + `)`

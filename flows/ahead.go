package flows

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/clock"
	"lemma/flows/enrollment"
	"lemma/loop"
)

const (
	aheadMost = 1_000     // rows that one run of a repair changes
	blockMost = time.Hour // the longest wait of an enrollment that is blocked
)

// Repairs returns the repairs of the times of flows, of their shards, moves and polls, and of
// enrollments that are blocked. When an enrollment is due otherwise is a matter of its flow, so
// nothing is known about that.
func (f *Flows) Repairs() []clock.Repair {
	lease := f.cfg.Lease + clock.Slack
	retry := max(f.cfg.MaxBackOff*6/5, restAfterError) + clock.Slack
	return []clock.Repair{
		clock.Update(f.pool, "flows", repairFlows, clock.Slack, aheadMost),
		clock.Update(f.pool, "flow_shards", repairShards, restAfterError+clock.Slack, lease, aheadMost),
		clock.Update(f.pool, "flow_moves", repairMoves, restAfterError+clock.Slack, lease, aheadMost),
		clock.Update(f.pool, "flow_polls", repairPolls, clock.Slack, retry, lease, aheadMost),
		{Table: "enrollments", Run: f.repairBlocked},
	}
}

// repairFlows moves the end of a pause into the past, and the time in which the enrollments
// that became due in the pause catch up by as much. Until then they would wait.
const repairFlows = `
	with ahead as (
		select workspace_id, id from flows where resumed_at > now() + $1::interval limit $2 for no key update skip locked
	)
	update flows f set resumed_at = now(), catch_up_until = now() + (f.catch_up_until - f.resumed_at)
	from ahead a where f.workspace_id = a.workspace_id and f.id = a.id`

// repairShards reads shards with due enrollments only: those that are retried or leased.
const repairShards = `
	with ahead as (
		select workspace_id, flow_id, shard from flow_shards
		where next_due_at <= now() and (retry_at > now() + $1::interval or lease_until > now() + 2 * $2::interval
			or worked_at > now() + $1::interval)
		limit $3 for no key update skip locked
	)
	update flow_shards t set retry_at = case when t.retry_at > now() + $1::interval then now() else t.retry_at end,
		worked_at = case when t.worked_at > now() then now() else t.worked_at end,
		lease_until = case when t.lease_until > now() + 2 * $2::interval then now() + $2::interval else t.lease_until end
	from ahead a where t.workspace_id = a.workspace_id and t.flow_id = a.flow_id and t.shard = a.shard`

const repairMoves = `
	with ahead as (
		select workspace_id, flow_id, id from flow_moves
		where finished_at is null and (retry_at > now() + $1::interval or lease_until > now() + 2 * $2::interval)
		limit $3 for no key update skip locked
	)
	update flow_moves m set retry_at = case when m.retry_at > now() + $1::interval then now() else m.retry_at end,
		lease_until = case when m.lease_until > now() + 2 * $2::interval then now() + $2::interval else m.lease_until end
	from ahead a where m.workspace_id = a.workspace_id and m.flow_id = a.flow_id and m.id = a.id`

// repairPolls makes polls due. The period of a poll has any length: it began at the poll
// before, which is not in the future. A poll that has failed, or that was never made, waits for
// at most a back-off.
const repairPolls = `
	with ahead as (
		select workspace_id, flow_id from flow_polls
		where next_at > now() + $1::interval and last_at > now() + $1::interval
			or next_at > now() + $2::interval and (failures > 0 or last_at is null) or lease_until > now() + 2 * $3::interval
		limit $4 for no key update skip locked
	)
	update flow_polls p set
		next_at = case when p.next_at > now() + $1::interval and p.last_at > now() + $1::interval
			or p.next_at > now() + $2::interval and (p.failures > 0 or p.last_at is null) then now() else p.next_at end,
		last_at = case when p.last_at > now() then now() else p.last_at end,
		lease_until = case when p.lease_until > now() + 2 * $3::interval then now() + $3::interval else p.lease_until end
	from ahead a where p.workspace_id = a.workspace_id and p.flow_id = a.flow_id`

// repairBlocked makes enrollments due that are blocked for longer than they can be: those of
// each flow that are due last.
func (f *Flows) repairBlocked(ctx context.Context) (rows int64, err error) {
	longest := max(f.cfg.MaxBackOff*6/5, blockMost) + clock.Slack
	found, _ := f.pool.Query(ctx, `
		select e.workspace_id, e.id from flows f cross join lateral (
			select e.workspace_id, e.id from enrollments e
			where e.workspace_id = f.workspace_id and e.flow_id = f.id and e.blocked_reason is not null
				and e.resume_at > now() + $1::interval
			order by e.resume_at desc limit $2) e
		where f.status in ('live', 'draining') limit $2`, longest, aheadMost)
	of := map[uuid.UUID][]uuid.UUID{}
	var ws, id uuid.UUID
	_, err = pgx.ForEachRow(found, []any{&ws, &id}, func() error { of[ws] = append(of[ws], id); return nil })
	if err != nil {
		return 0, err
	}
	err = loop.Each(ctx, slices.Collect(maps.Keys(of)), func(ws uuid.UUID) error {
		n, err := f.unblock(ctx, ws, of[ws], longest)
		rows += n
		return err
	})
	return rows, err
}

// unblock makes enrollments of one workspace due that still are blocked for too long. It locks
// them in the order of their ids.
func (f *Flows) unblock(ctx context.Context, ws uuid.UUID, all []uuid.UUID, longest time.Duration) (rows int64, err error) {
	slices.SortFunc(all, func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
	err = enrollment.Transact(ctx, f.pool, func(tx pgx.Tx) error {
		repaired, _ := tx.Query(ctx, `
			update enrollments e set resume_at = now()
			from (select $1::uuid as workspace_id, r.id from unnest($2::uuid[]) as r (id) limit $4) r
			where e.workspace_id = r.workspace_id and e.id = r.id and e.ended_at is null and coalesce(e.blocked_reason, '') <> ''
				and e.resume_at - $3::interval > now()
			returning e.flow_id, e.shard`, ws, all, longest, len(all))
		s, due := enrollment.Shard{Workspace: ws}, map[enrollment.Shard]bool{}
		tag, err := pgx.ForEachRow(repaired, []any{&s.Flow, &s.Number}, func() error { due[s] = true; return nil })
		if err != nil {
			return err
		}
		rows = tag.RowsAffected()
		return enrollment.LowerBounds(ctx, tx, due)
	})
	return rows, err
}

// waitsAnew is true of an enrollment e whose wait begins again or is shifted by its move r. It
// is not blocked any more: its time is that of the wait, and not that of the next try.
const waitsAnew = `(r.timer = 'restarted' or r.shift <> 0 and not (e.` + hasMatched + `))`

package webhooks

import (
	"slices"
	"time"

	"lemma/clock"
)

const (
	aheadMost  = 1_000     // rows that one run of a repair changes
	asideMost  = time.Hour // the longest time for which an event is put aside
	asideAmong = 1_000     // events of a workspace, the oldest that wait, that one run checks
)

// Repairs returns the repairs of the times of messages and events.
func (w *Webhooks) Repairs() []clock.Repair {
	lease := w.options.Lease + clock.Slack
	waits := max(slices.Max(w.options.BackOff)*6/5, maxRetryAfter) + clock.Slack
	return []clock.Repair{
		clock.Update(w.pool, "outbox", repairWaits, waits, aheadMost),
		clock.Update(w.pool, "outbox", repairDue, lease, aheadMost),
		clock.Update(w.pool, "events_out", repairAside, asideMost+clock.Slack, asideAmong),
	}
}

// repairWaits makes messages due that were called and wait for their next call.
const repairWaits = `
	with ahead as (
		select ctid as at from outbox where status = 'pending' and waits and due_at > now() + $1::interval
		order by due_at limit $2 for no key update skip locked
	)
	update outbox o set due_at = now() from ahead a where o.ctid = a.at`

// repairDue makes messages due that do not wait for a retry, and lowers leases. The due_at of a
// message that is leased is the end of its lease.
const repairDue = `
	with ahead as (
		select o.at from webhook_endpoints e cross join lateral (
			select o.ctid as at from outbox o
			where o.workspace_id = e.workspace_id and o.endpoint_id = e.id and o.status = 'pending' and not o.waits
				and o.due_at > now() + 2 * $1::interval
			order by o.due_at desc limit $2 for no key update skip locked) o
		limit $2
	)
	update outbox o set due_at = case when o.leased_by is null then now() else now() + $1::interval end,
		lease_until = case when o.leased_by is not null then now() + $1::interval end
	from ahead a where o.ctid = a.at`

const repairAside = `
	with recursive w as (
		(select workspace_id from events_out where published_at is null order by workspace_id limit 1)
		union all
		select n.workspace_id from w cross join lateral (
			select workspace_id from events_out where published_at is null and workspace_id > w.workspace_id
			order by workspace_id limit 1) n
	), ahead as (
		select e.workspace_id, e.id from w cross join lateral (
			select workspace_id, id, aside_until from events_out
			where workspace_id = w.workspace_id and published_at is null order by occurred_at, id limit $2) e
		where e.aside_until > now() + $1::interval
		limit $2
	)
	update events_out e set aside_until = null
	from ahead a where e.workspace_id = a.workspace_id and e.id = a.id and e.published_at is null`

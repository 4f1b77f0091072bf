package sender

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/notifications"
)

// eventState is what is known of a carrier's events about the calls of a batch.
type eventState int

const (
	eventsCurrent eventState = iota // they have come, or the provider receives none
	eventsAwaited                   // the newest that has come is older than the calls, or others may be as late as it
	eventsOverdue                   // the same, and Config.EventWait is over
)

// readEvents compares the watermark of a batch's provider with the last window under
// its token (SendingEngine: WaitsForEvents). A late event is as bad as a lost one, so a
// second attempt waits for newer events, and then until all calls of the lease would have
// theirs if each is as late as the newest. Rows that were split from another batch have
// their windows there. What the process itself is set up for plays no part: a provider that
// receives events is awaited if some have come, or if the installation has a public URL. The
// times of the windows are from before a jump of the clock, if there was one.
func (s *Sender) readEvents(ctx context.Context, tx pgx.Tx, ref notifications.Ref, b stale) (state eventState, err error) {
	if b.Attempt == b.MaxAttempts {
		return eventsCurrent, nil
	}
	var behind, overdue bool
	err = tx.QueryRow(ctx, `
		select p.receives and (m.provider_id is not null or exists (select from settings where name = 'LEMMA_PUBLIC_URL'))
				and (coalesce(m.occurred_at < w.called_at, true)
				or coalesce(now() - $7::interval < w.until + (m.recorded_at - m.occurred_at), false)),
			w.called_at < now() - $7::interval - $6::interval
		from providers p
		left join provider_watermarks m on m.workspace_id = p.workspace_id and m.provider_id = p.id
		cross join lateral (
			select coalesce(max(l.at), '-infinity') as called_at, max(l.until) as until from (
				select $4::uuid as id
				union all
				(select o.id from batches o where o.workspace_id = $1 and o.origin_id = $3 and o.root_id = $4 and o.id <> o.root_id)
			) o
			cross join lateral (
				select l.at, l.until from batch_log l
				where l.workspace_id = $1 and l.batch_id = o.id and l.event = 'window' and l.token = $5 order by l.at desc limit 1
			) l
		) w
		where p.workspace_id = $1 and p.id = $2`,
		ref.WorkspaceID, b.ProviderID, ref.OriginID, b.Root, b.Token, s.cfg.Lease+s.cfg.EventWait, b.Ahead).Scan(&behind, &overdue)
	switch {
	case err != nil:
		return 0, fmt.Errorf("read watermark: %w", err)
	case !behind:
		return eventsCurrent, nil
	case overdue:
		return eventsOverdue, nil
	}
	return eventsAwaited, nil
}

// reapLater leaves a batch whose rows all wait for events to a later run. Its worker,
// if it still runs, may commit outcomes that it has received.
func (s *Sender) reapLater(ctx context.Context, tx pgx.Tx, ref notifications.Ref, b stale) error {
	_, err := tx.Exec(ctx, `
		update batches set lease_until = now() + $5
		where workspace_id = $1 and origin_id = $2 and id = $3 and status = 'leased' and leased_by = $4`,
		ref.WorkspaceID, ref.OriginID, ref.BatchID, b.Token, s.cfg.ReapEvery-b.Ahead)
	return lemma.Wrap(err, "wait for events")
}

// moveWaiting moves the rows that wait for events into a batch of their own, which is
// leased without a holder, so that the others do not wait with them.
func (s *Sender) moveWaiting(ctx context.Context, tx pgx.Tx, ref notifications.Ref, b stale, waiting []int16) error {
	_, err := tx.Exec(ctx, `
		with b as (
			update batches set size = size - cardinality($6::smallint[]), calling = 0, open = '{}'
			where workspace_id = $1 and origin_id = $2 and id = $3 and status = 'leased' and leased_by = $4
			returning workspace_id, origin_id, root_id, provider_id, content_id, attempt, max_attempts, gate, expires_at, leased_by, refusals,
				resumed_at
		), split as (
			insert into batches (workspace_id, origin_id, id, root_id, provider_id, content_id, size, attempt, max_attempts,
				status, gate, expires_at, leased_by, lease_until, called_through, calling, open, members, refusals, resumed_at)
			select workspace_id, origin_id, $5, root_id, provider_id, content_id, cardinality($6), attempt, max_attempts,
				'leased', gate, expires_at, leased_by, now() + $7, ($6::smallint[])[cardinality($6)], cardinality($6), $6, $6, refusals, resumed_at
			from b
			returning workspace_id, id, leased_by, lease_until
		)
		insert into batch_log (workspace_id, batch_id, event, token, until, detail)
		select workspace_id, id, 'unresolved', leased_by, lease_until, $8 from split`,
		ref.WorkspaceID, ref.OriginID, ref.BatchID, b.Token, lemma.NewID(), waiting, s.cfg.ReapEvery-b.Ahead, notifications.AwaitsEvents)
	return lemma.Wrap(err, "move rows that wait for events")
}

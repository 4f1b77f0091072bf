package sender

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/loop"
	"lemma/notifications"
)

// A fan-out spreads the due times of its batches by the rate that the provider has at that
// time, so that not all of them are claimed at once and wait for the meter. The meter alone
// bounds the rate: these due times are a hint. The rate may be raised, and rows may be skipped
// without a call. So when a meter is idle, the next batches are made due before their time.

const (
	fillProviders = 100              // with batches that were never claimed, per run; the next one goes on after them
	fillFor       = 10 * time.Second // of the rate, that is made due at a time
	fillMost      = 500              // batches of a provider, at most
	fillAmong     = 2_000            // batches of a provider that are due next, of which a run chooses
	fillWait      = 30 * time.Second // for the first window of a batch, after its claim or the renewal of its lease
)

// neverClaimed is true of batches of campaigns and flows that can be claimed when they are due,
// and never were: a batch that was given back has open rows, and so has a second attempt. It is
// the predicate of the index batches_never_claimed.
const neverClaimed = `status = 'ready' and gate = 'open' and open is null and ` + notDirect

// filled is the provider after which the next run goes on.
type filled struct {
	sync.Mutex
	workspace, provider uuid.UUID
}

// FillRate makes the next batches of each provider due whose rate is unused, in the order of
// their due times, and returns their number. A provider whose batches are due, or were claimed
// lately and have no window yet, gets no more.
func (s *Sender) FillRate(ctx context.Context) (n int, err error) {
	idle, err := s.idleProviders(ctx)
	if err != nil {
		return 0, err
	}
	err = loop.Each(ctx, idle, func(p idleProvider) error {
		due, err := s.makeNextDue(ctx, p)
		n += due
		return err
	})
	return n, err
}

type idleProvider struct{ workspace, provider uuid.UUID }

// idleProviders skips in an index from one provider with batches that were never claimed to the
// next, however many batches it has.
func (s *Sender) idleProviders(ctx context.Context) (idle []idleProvider, err error) {
	f := &s.filled
	f.Lock()
	defer f.Unlock()
	rows, _ := s.pool.Query(ctx, `
		with recursive p as (
			(select workspace_id, provider_id, due_at, 1 as n from batches
			where `+neverClaimed+` and (workspace_id, provider_id) > ($1, $2) order by workspace_id, provider_id, due_at limit 1)
			union all
			select b.workspace_id, b.provider_id, b.due_at, p.n + 1 from p cross join lateral (
				select workspace_id, provider_id, due_at from batches
				where `+neverClaimed+` and (workspace_id, provider_id) > (p.workspace_id, p.provider_id)
				order by workspace_id, provider_id, due_at limit 1) b
			where p.n < $3
		)
		select p.workspace_id, p.provider_id, p.due_at > now() and m.open_until is null and coalesce(m.next_free_at <= now(), true)
		from p left join provider_meters m on m.workspace_id = p.workspace_id and m.provider_id = p.provider_id
		order by p.n`, f.workspace, f.provider, fillProviders)
	var p idleProvider
	var is bool
	n := 0
	_, err = pgx.ForEachRow(rows, []any{&p.workspace, &p.provider, &is}, func() error {
		if n++; is {
			idle = append(idle, p)
		}
		return nil
	})
	f.workspace, f.provider = uuid.Nil, uuid.Nil
	if err != nil {
		return nil, fmt.Errorf("find providers whose rate is unused: %w", err)
	}
	if n == fillProviders {
		f.workspace, f.provider = p.workspace, p.provider
	}
	return idle, nil
}

// makeNextDue also enqueues the batches: their jobs are scheduled for the time at which they
// were due before.
func (s *Sender) makeNextDue(ctx context.Context, p idleProvider) (n int, err error) {
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, lockNext, p.workspace, p.provider, fillAmong, fillFor.Seconds(), fillMost,
			s.cfg.Lease-fillWait)
		next, err := pgx.CollectRows(rows, pgx.RowToStructByPos[notifications.Ref])
		if err != nil || len(next) == 0 {
			return err
		}
		jobs, updates := make([]notifications.Job, len(next)), &pgx.Batch{}
		for i, ref := range next {
			jobs[i].Ref = ref
			updates.Queue(`update batches set due_at = now(), enqueued_at = now() where workspace_id = $1 and origin_id = $2 and id = $3`,
				ref.WorkspaceID, ref.OriginID, ref.BatchID)
		}
		if err := tx.SendBatch(ctx, updates).Close(); err != nil {
			return err
		}
		n = len(next)
		return s.ledger.Enqueue(ctx, tx, jobs)
	})
	if err != nil {
		return 0, fmt.Errorf("make batches of provider %s due: %w", p.provider, err)
	}
	return n, nil
}

// lockNext checks the provider again, since other processes do the same. Messages of a
// variant with a send_offset are never earlier than that after they were written: enqueued_at is
// the time at which a batch that was never claimed and is due later was written. Rows that others
// have locked are left to the next run, so that no deadlock is possible. The range of one provider keeps a planner
// from the indexes of due batches, in which it would read those of other providers. A lease that
// was neither taken nor renewed lately may be that of a process that was killed. now() is the begin
// of this transaction: a batch that another one, begun later, has made due would be due later. The
// same is true of the begin of the statement for a row that is read again when it is locked.
const lockNext = `
	with idle as materialized (
		select p.rate_per_second as rate from providers p
		left join provider_meters m on m.workspace_id = p.workspace_id and m.provider_id = p.id
		where p.workspace_id = $1 and p.id = $2 and m.open_until is null and coalesce(m.next_free_at <= statement_timestamp(), true)
		  and statement_timestamp() < (select due_at from batches
			where workspace_id = $1 and provider_id between $2 and $2 and ` + neverClaimed + ` order by provider_id, due_at limit 1)
		  and not exists (select from batches
			where workspace_id = $1 and provider_id = $2 and status = 'leased' and called_through = -1
			  and lease_until > statement_timestamp() + $6::interval)
	), later as (
		select b.origin_id, b.id, b.due_at, idle.rate, sum(b.size) over (order by b.due_at, b.id) - b.size as before
		from idle cross join lateral (
			select origin_id, id, size, due_at, content_id, enqueued_at from batches
			where workspace_id = $1 and provider_id between $2 and $2 and ` + neverClaimed + ` and due_at > statement_timestamp()
			order by provider_id, due_at limit $3) b
		where not exists (
			select from iterations i join iteration_variants v on v.workspace_id = i.workspace_id and v.iteration_id = i.id
			where i.workspace_id = $1 and i.campaign_id = b.origin_id and v.content_id = b.content_id
			  and b.enqueued_at + v.send_offset > statement_timestamp())
	), next as (
		select origin_id, id from later where rate is null or before < rate * $4::float8 order by due_at, id limit $5
	)
	select b.workspace_id, b.origin_id, b.id from next cross join lateral (
		select workspace_id, origin_id, id from batches
		where workspace_id = $1 and origin_id = next.origin_id and id = next.id and ` + isReady + ` and gate = 'open'
		  and open is null and due_at > clock_timestamp()
		limit 1 for update skip locked) b`

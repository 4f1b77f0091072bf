package sender

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/clock"
	"lemma/loop"
	"lemma/notifications"
)

// MostLease is the longest Config.Lease. A lease that is further ahead is not valid.
const MostLease = time.Hour

const (
	aheadAmong = 5_000 // batches that are not due, of which one run checks the times; the next one goes on after them
	aheadMost  = 1_000 // rows of other tables that one run repairs
)

// Repairs returns the repairs of the times of batches and of the meters of providers.
//
// No safety depends on them. A lease that is lowered ends as late as one of MostLease that is
// renewed now, and each write of its holder is fenced by its token.
func (s *Sender) Repairs() []clock.Repair {
	circuit := max(s.cfg.CircuitMost, MostRetryAfter) + clock.Slack
	return []clock.Repair{
		clock.Update(s.pool, "provider_meters", repairMeters, clock.Slack, circuit, max(s.cfg.ProbeLease, clock.Slack), aheadMost),
		{Table: "batches", Run: s.repairLeases},
		{Table: "batches", Run: s.repairDue},
	}
}

// repairMeters frees the rate of a provider, whose meter is at most the time of one message
// ahead, or half a second, and a burst. It makes an open circuit due for a probe, and frees a
// probe. The times of failures, from which the length of an outage is computed, are in the past.
const repairMeters = `
	with ahead as (
		select m.workspace_id, m.provider_id, ` + perMessage + ` as per_message from provider_meters m
		join providers p on p.workspace_id = m.workspace_id and p.id = m.provider_id
		where m.next_free_at > now() + $1::interval + ` + perMessage + ` or m.open_until > now() + $2::interval
			or m.probe_until > now() + 2 * $3::interval or m.opened_at > now() + $1::interval or m.failing_since > now() + $1::interval
		limit $4 for update of m skip locked
	)
	update provider_meters m set
		next_free_at = case when m.next_free_at > now() + $1::interval + a.per_message then now() else m.next_free_at end,
		open_until = case when m.open_until > now() + $2::interval then now() else m.open_until end,
		probe_until = case when m.probe_until > now() + 2 * $3::interval then now() + $3::interval else m.probe_until end,
		opened_at = case when m.opened_at > now() then now() else m.opened_at end,
		failing_since = case when m.failing_since > now() then now() else m.failing_since end,
		failed_at = case when m.failed_at > now() then now() else m.failed_at end
	from ahead a where m.workspace_id = a.workspace_id and m.provider_id = a.provider_id`

// perMessage is the time of one message at the rate of a provider p.
const perMessage = `make_interval(secs => least(coalesce(1 / p.rate_per_second, 0), 1e9))`

// repairLeases lowers leases that no process can have. Their batches are few: those that are
// being worked.
func (s *Sender) repairLeases(ctx context.Context) (rows int64, err error) {
	found, _ := s.pool.Query(ctx, `
		select workspace_id, origin_id, id from batches
		where status = 'leased' and lease_until > now() + $1::interval limit $2`, MostLease+clock.Slack, aheadMost)
	leased, err := pgx.CollectRows(found, pgx.RowToStructByPos[notifications.Ref])
	if err != nil {
		return 0, fmt.Errorf("find leases that are too long: %w", err)
	}
	err = loop.Each(ctx, leased, func(ref notifications.Ref) error {
		tag, err := s.pool.Exec(ctx, `
			update batches set lease_until = now() + $4::interval
			where workspace_id = $1 and origin_id = $2 and id = $3 and status || '' = 'leased'
			  and lease_until > now() + $4::interval`, ref.WorkspaceID, ref.OriginID, ref.BatchID, MostLease)
		rows += tag.RowsAffected()
		return err
	})
	return rows, err
}

// isAhead is true of a ready batch b whose due_at Lemma cannot have set by the present clock;
// $1 is the slack, $2 the longest wait of a batch without refusals, and $3 of one with refusals.
// Both may also wait for the rate of the provider.
//
// A batch that was given back has open rows, and so has one that was never claimed and of which
// a row was cancelled: only the first has a log. One that was never claimed was written by a
// wrong clock if it was created in the future. That of direct notifications may have a send_at,
// which cannot be distinguished unless it is not after its creation.
const isAhead = `(case
	when ` + wasGivenBack + ` then b.due_at > now() + case when b.refusals is null then $2::interval else $3::interval end
		+ (select ` + perMessage + ` from providers p where p.workspace_id = b.workspace_id and p.id = b.provider_id)
	else b.created_at > now() + $1::interval and (` + notDirect + ` or b.due_at <= b.created_at) end)`

// wasGivenBack is true of a ready batch b that was claimed, and of one that was made from another.
// Each claim is in its log.
const wasGivenBack = `(b.root_id <> b.id
	or b.open is not null and exists (select from batch_log l where l.workspace_id = b.workspace_id and l.batch_id = b.id))`

// repairDue makes batches due that wait for a time of a wrong clock, and enqueues them.
func (s *Sender) repairDue(ctx context.Context) (rows int64, err error) {
	found, err := s.readAhead(ctx)
	if err != nil {
		return 0, err
	}
	err = loop.Each(ctx, found, func(ref notifications.Ref) error {
		repaired, err := s.makeDue(ctx, ref)
		if repaired {
			rows++
		}
		return err
	})
	return rows, err
}

// aheadBatches is where the next run begins to check the times of batches.
type aheadBatches struct {
	sync.Mutex
	after time.Time // their due_at
}

// readAhead checks the batches that are due after those of the run before, and returns those
// whose times are wrong.
func (s *Sender) readAhead(ctx context.Context) (found []notifications.Ref, err error) {
	s.ahead.Lock()
	defer s.ahead.Unlock()
	rows, _ := s.pool.Query(ctx, `
		select b.workspace_id, b.origin_id, b.id, b.due_at, `+isAhead+` from (
			select workspace_id, origin_id, id, root_id, provider_id, due_at, created_at, open, refusals from batches
			where status = 'ready' and gate = 'open' and due_at > greatest(now() + $1::interval, $4) order by due_at limit $5
		) b`, append(s.aheadBounds(), s.ahead.after, aheadAmong)...)
	var ref notifications.Ref
	var due time.Time
	var is bool
	read, last := 0, time.Time{}
	_, err = pgx.ForEachRow(rows, []any{&ref.WorkspaceID, &ref.OriginID, &ref.BatchID, &due, &is}, func() error {
		if is {
			found = append(found, ref)
		}
		if read++; due.After(last) {
			last = due
		}
		return nil
	})
	s.ahead.after = time.Time{}
	if read == aheadAmong {
		s.ahead.after = last
	}
	if err != nil {
		return nil, fmt.Errorf("find batches that are due too late: %w", err)
	}
	return found, nil
}

// aheadBounds are the parameters of isAhead.
func (s *Sender) aheadBounds() []any {
	short := max(s.cfg.DeferFor, s.cfg.CircuitFirst, mostPause+2*readRetry) + clock.Slack
	return []any{clock.Slack, short, max(short, s.cfg.DeferMost, MostRetryAfter) + clock.Slack}
}

// makeDue repairs a batch if its time is still wrong. What it waits for after its creation,
// such as the offset of a variant, it waits for again. Its rows are read again from their
// audience before a call, since it is not known when they were read.
func (s *Sender) makeDue(ctx context.Context, ref notifications.Ref) (repaired bool, err error) {
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		var after float64
		err := tx.QueryRow(ctx, `
			update batches b set enqueued_at = now(), resumed_at = now(), retry_at = null,
				due_at = now() + case when `+wasGivenBack+` then interval '0' else greatest(due_at - created_at, interval '0') end,
				created_at = case when created_at > now() then now() else created_at end
			where workspace_id = $4 and origin_id = $5 and id = $6 and `+isReady+` and `+isAhead+`
			returning extract(epoch from due_at - now())::float8`,
			append(s.aheadBounds(), ref.WorkspaceID, ref.OriginID, ref.BatchID)...).Scan(&after)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		repaired = true
		return s.ledger.Enqueue(ctx, tx, []notifications.Job{{Ref: ref, After: time.Duration(after * float64(time.Second))}})
	})
	return repaired && err == nil, lemma.Wrap(err, "make batch %s due", ref.BatchID)
}

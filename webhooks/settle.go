package webhooks

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
	"lemma/slots"
)

// settler settles calls that end together in one transaction, since a commit costs
// more than a message. A call that ends alone is settled at once. While others are made it
// waits for them, for gatherTime.
type settler struct {
	mu        sync.Mutex
	waiting   []*settlement
	writers   int
	gathering bool         // one of the writers waits for more calls
	slots     *slots.Slots // of calls of Loop that are made or not settled yet
	open      atomic.Int32 // how many there are

	apart      map[uuid.UUID]*apart // workspaces whose rows were locked
	apartSlots *slots.Slots         // of their calls
	tooOld     time.Duration        // since its claim, for which an answer of one waits at most
	turns      int                  // chunks of workspaces apart
	short      int                  // those since the last one that waited for apartWait
	isApart    bool                 // one of the writers settles such a chunk
	draining   bool                 // the process shuts down
	wasApart   bool                 // the last chunk was one
}

// settlement is a call that has ended, and the result of its settlement.
type settlement struct {
	claimed
	result      result
	delay       time.Duration
	held, ended bool          // held: the lease was still this worker's
	apart       time.Duration // 0; of a workspace apart: for how long its chunk waits for a lock
	err         error
	done        func(*settlement) // called afterwards; it must not wait
}

const (
	settlers     = 2                     // chunks that one process settles at a time
	settleChunk  = 256                   // messages in a chunk
	gatherTime   = 20 * time.Millisecond // for which a chunk waits for more calls
	maxUnsettled = 1024                  // calls of one process that are not settled yet; at this number no further call begins
	maxOfOne     = maxUnsettled / 2      // of one workspace
)

// settle stores the result of a call: the message has ended, or is due again later.
// It is not held if the lease has expired and another worker has the message; then
// nothing is changed.
func (w *Webhooks) settle(ctx context.Context, m claimed, v result) *settlement {
	done := make(chan *settlement, 1)
	w.settleSoon(m, v, func(one *settlement) { done <- one })
	select {
	case one := <-done:
		return one
	case <-ctx.Done():
		return &settlement{claimed: m, result: v, err: fmt.Errorf("settle message %s: %w", m.ID, ctx.Err())}
	}
}

// settleSoon adds a call to those that are settled next, and does not wait.
func (w *Webhooks) settleSoon(m claimed, v result, done func(*settlement)) {
	one := &settlement{claimed: m, result: v, delay: w.delay(m.Attempts, v), done: done}
	s := w.settler
	s.mu.Lock()
	s.waiting = append(s.waiting, one)
	start := s.writers < settlers && !s.gathering
	if start {
		s.writers++
	}
	var over []*settlement
	if s.apart[m.WorkspaceID] != nil {
		over = s.excess()
	}
	s.mu.Unlock()
	putOff(over)
	w.reached("waits for settlement")
	if start {
		go w.settleWaiting()
	}
}

// settleWaiting settles chunk by chunk until none waits.
func (w *Webhooks) settleWaiting() {
	for {
		chunk, another := w.settler.next()
		if another {
			go w.settleWaiting()
		}
		if len(chunk) == 0 {
			return
		}
		locked := w.settleTogether(chunk)
		settled := without(chunk, locked) // another writer may have the locked ones soon
		putOff(w.settler.ended(chunk, locked))
		for _, one := range settled {
			one.done(one)
		}
	}
}

// next returns the next chunk. It waits for more while other calls are made. If none is left,
// or another writer waits for more, it returns none and the writer ends. another starts a further writer: for
// those that came while it waited, when the chunk is of a workspace apart and may take long.
func (s *settler) next() (chunk []*settlement, another bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) == 0 || s.gathering {
		s.writers--
		return nil, false
	}
	if len(s.waiting) < settleChunk && int(s.open.Load()) > len(s.waiting) {
		s.gathering = true
		s.mu.Unlock()
		time.Sleep(gatherTime)
		s.mu.Lock()
		s.gathering = false
	}
	chunk = s.take(time.Now())
	switch {
	case len(chunk) == 0:
		s.writers--
	case chunk[0].apart > 0 && len(s.waiting) > 0 && s.writers < settlers:
		s.writers++
		another = true
	}
	return chunk, another
}

// settleAll settles messages in one transaction, with the effects of their end. It waits for a locked row for
// some time.
func (w *Webhooks) settleAll(ctx context.Context, all []*settlement, wait time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	slices.SortFunc(all, func(a, b *settlement) int { return bytes.Compare(a.ID[:], b.ID[:]) }) // locks are taken in this order
	for _, one := range all {
		one.held, one.ended = false, false
	}
	return lemma.Wrap(w.writeSettled(ctx, all, wait), "settle %d messages, the first of them %s", len(all), all[0].ID)
}

// writeSettled writes results with their effects. Results without effects are one statement.
func (w *Webhooks) writeSettled(ctx context.Context, all []*settlement, wait time.Duration) error {
	if !slices.ContainsFunc(all, (*settlement).mayHaveEffects) {
		_, err := w.writeResults(ctx, w.pool, all)
		return err
	}
	return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `select set_config('lock_timeout', $1, true)`, strconv.FormatInt(wait.Milliseconds(), 10)); err != nil {
			return err
		}
		ended, err := w.writeResults(ctx, tx, all)
		if err == nil && len(ended) > 0 && w.settled != nil {
			err = w.settled(ctx, tx, ended)
		}
		if err != nil {
			return err
		}
		return recordFailing(ctx, tx, all)
	})
}

// mayHaveEffects reports whether more is written than the result: an enrollment waits for
// it, or the endpoint begins or ends to fail.
func (e *settlement) mayHaveEffects() bool {
	return e.awaited() || e.changesFailing()
}

// awaited reports whether an enrollment waits for the answer.
func (m *claimed) awaited() bool { return m.EnrollmentID != nil && m.Step != nil }

// claimsOf are claims, by ids and tokens, for an update that finds each by the whole
// primary key. The limit excludes no row. It makes the planner expect few rows, and
// so read messages one by one, whatever its statistics.
const claimsOf = `select workspace_id, id, token from unnest($1::uuid[], $2::uuid[], $3::text[]) as r (workspace_id, id, token) limit $4`

func claimsIn(all []claimed, limit int) []any {
	ws, ids, tokens := make([]pgtype.UUID, len(all)), make([]pgtype.UUID, len(all)), make([]string, len(all))
	for i, m := range all {
		ws[i], ids[i], tokens[i] = pgUUID(m.WorkspaceID), pgUUID(m.ID), m.LeasedBy
	}
	return []any{ws, ids, tokens, limit}
}

// stateNow is the new status of a message o after a call r. A message whose next
// call would be after GiveUp has failed.
const stateNow = `(case when r.status = 'pending' and coalesce(o.resent_at, o.created_at) + $9::interval < now() + r.delay
	then 'failed' else r.status end)`

// writeResults stores results by a compare-and-set on the token, and returns the
// outcomes of the messages that have ended and for which an enrollment waits.
func (w *Webhooks) writeResults(ctx context.Context, db interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}, all []*settlement) ([]Outcome, error) {
	n := len(all)
	claims, of := make([]claimed, n), make(map[[2]uuid.UUID]*settlement, n)
	states, reasons, statuses, delays := make([]string, n), make([]string, n), make([]int32, n), make([]time.Duration, n)
	for i, one := range all {
		claims[i], of[[2]uuid.UUID{one.WorkspaceID, one.ID}] = one.claimed, one
		states[i], reasons[i], statuses[i], delays[i] = one.result.state(), one.result.reason, int32(one.result.status), one.delay
	}
	rows, _ := db.Query(ctx, `
		update outbox o set status = `+stateNow+`, status_code = nullif(r.status_code, 0), last_error = nullif(r.reason, ''),
			called_at = now(), leased_by = null, lease_until = null, waits = true,
			due_at = now() + r.delay, finished_at = case when `+stateNow+` <> 'pending' then now() end
		from (
			select workspace_id, id, token, status, status_code, reason, delay
			from unnest($1::uuid[], $2::uuid[], $3::text[], $5::text[], $6::int[], $7::text[], $8::interval[])
				as r (workspace_id, id, token, status, status_code, reason, delay) limit $4
		) r
		where o.workspace_id = r.workspace_id and o.id = r.id and o.finished_at is null and o.leased_by = r.token
		returning o.workspace_id, o.id, o.status, o.attempts`,
		append(claimsIn(claims, n), states, statuses, reasons, delays, w.options.GiveUp)...)
	var ended []Outcome
	var ws, id pgtype.UUID
	var state string
	var attempts int
	_, err := pgx.ForEachRow(rows, []any{&ws, &id, &state, &attempts}, func() error {
		one := of[[2]uuid.UUID{ws.Bytes, id.Bytes}]
		one.held, one.ended = true, state != "pending"
		if one.ended && one.awaited() {
			ended = append(ended, one.outcome(attempts))
		}
		return nil
	})
	return ended, err
}

func (e *settlement) outcome(attempts int) Outcome {
	return Outcome{WorkspaceID: e.WorkspaceID, ID: e.ID, EnrollmentID: *e.EnrollmentID, Step: *e.Step,
		Delivered: e.result.delivered(), Status: e.result.status, Error: e.result.reason, Attempts: attempts}
}

// delay is how long to wait after the n-th call: the back-off with a jitter of 20 %,
// so that messages that failed together are not retried together, and at least the
// Retry-After of the receiver.
func (w *Webhooks) delay(n int, v result) time.Duration {
	if v.final {
		return 0
	}
	planned := w.options.BackOff[min(max(n, 1), len(w.options.BackOff))-1]
	planned += time.Duration((rand.Float64() - 0.5) * 0.4 * float64(planned))
	return max(planned, v.retryAfter)
}

// putBack stores the answer of a message that could not be settled, so that the
// receiver is not called again because of an error in Lemma.
func (w *Webhooks) putBack(m claimed, v result, wait time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), settleTime)
	defer cancel()
	_, err := w.pool.Exec(ctx, `
		update outbox set answered = $4, status_code = nullif($5::int, 0), last_error = nullif($6, ''), called_at = now(),
			leased_by = null, lease_until = null, waits = true, due_at = now() + $7::interval
		where workspace_id = $1 and id = $2 and finished_at is null and leased_by = $3`,
		m.WorkspaceID, m.ID, m.LeasedBy, v.final, v.status, v.reason, wait)
	return err
}

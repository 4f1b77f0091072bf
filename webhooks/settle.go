package webhooks

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// settler lets calls that end together be settled together, since a commit costs
// more than a message. The first finds nobody at work and is settled at once;
// those that end meanwhile are the next chunk. Nobody waits for others to come.
type settler struct {
	mu      sync.Mutex
	waiting []*ending
	writers int
	open    chan struct{} // one for each call that is being made or settled in Loop
}

// ending is a call that has ended, and what became of its settling.
type ending struct {
	claimed
	verdict     verdict
	delay       time.Duration
	held, ended bool
	err         error
	done        chan struct{}
}

const (
	settlers    = 2    // chunks of one node that are settled at a time
	settleChunk = 256  // messages of a chunk
	unsettled   = 1024 // calls of one node that may be without their settling: beyond it none is begun
)

// settle writes down what a call came to: the message has ended, or is due
// again later. The token decides who may: a worker whose lease ran out finds
// that its claim is no longer there and changes nothing. It answers false then.
func (w *Webhooks) settle(ctx context.Context, m claimed, v verdict) (held, ended bool, err error) {
	one := &ending{claimed: m, verdict: v, delay: w.delay(m.Attempts, v), done: make(chan struct{})}
	s := &w.settler
	s.mu.Lock()
	s.waiting = append(s.waiting, one)
	start := s.writers < settlers
	if start {
		s.writers++
	}
	s.mu.Unlock()
	if start {
		go w.settleWaiting()
	}
	select {
	case <-one.done:
		return one.held, one.ended, one.err
	case <-ctx.Done():
		return false, false, fmt.Errorf("settle message %s: %w", m.ID, ctx.Err())
	}
}

// settleWaiting settles chunk by chunk, until nothing waits. If a chunk fails
// each message is tried by itself, so that none fails for another's sake.
func (w *Webhooks) settleWaiting() {
	for {
		s := &w.settler
		s.mu.Lock()
		n := min(len(s.waiting), settleChunk)
		if n == 0 {
			s.writers--
			s.mu.Unlock()
			return
		}
		chunk := slices.Clone(s.waiting[:n])
		s.waiting = slices.Delete(s.waiting, 0, n)
		s.mu.Unlock()
		err := w.settleAll(chunk)
		for _, one := range chunk {
			if one.err = err; err != nil && len(chunk) > 1 {
				one.err = w.settleAll([]*ending{one})
			}
			close(one.done)
		}
	}
}

// settleAll settles messages in one transaction, with what follows from their end.
func (w *Webhooks) settleAll(all []*ending) error {
	ctx, cancel := context.WithTimeout(context.Background(), settleTime)
	defer cancel()
	slices.SortFunc(all, func(a, b *ending) int { return bytes.Compare(a.ID[:], b.ID[:]) }) // locks are taken in this order
	for _, one := range all {
		one.held, one.ended = false, false
	}
	err := pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		ended, err := w.writeDown(ctx, tx, all)
		if err != nil || len(ended) == 0 || w.settled == nil {
			return err
		}
		return w.settled(ctx, tx, ended)
	})
	if err != nil {
		return fmt.Errorf("settle %d messages, the first of them %s: %w", len(all), all[0].ID, err)
	}
	return nil
}

// claimsOf are claims, by ids and tokens, for an update that looks each up by the
// whole primary key. The limit cuts nothing off: of one that it does not know a
// planner expects little, and so it looks messages up one by one, however few it
// believes there are.
const claimsOf = `select * from unnest($1::uuid[], $2::uuid[], $3::text[]) as r (workspace_id, id, token) limit $4`

func claimsIn(all []claimed, limit int) []any {
	ws, ids, tokens := make([]pgtype.UUID, len(all)), make([]pgtype.UUID, len(all)), make([]string, len(all))
	for i, m := range all {
		ws[i], ids[i], tokens[i] = given(m.WorkspaceID), given(m.ID), m.LeasedBy
	}
	return []any{ws, ids, tokens, limit}
}

// stateNow is what a message o becomes by what a call r came to. What would be
// called again only after GiveUp has failed now.
const stateNow = `(case when r.status = 'pending' and o.created_at + $9::interval < now() + r.delay then 'failed' else r.status end)`

// writeDown is the compare-and-set on the token, and answers what came of the
// messages that have ended.
func (w *Webhooks) writeDown(ctx context.Context, tx pgx.Tx, all []*ending) ([]Outcome, error) {
	n := len(all)
	claims, of := make([]claimed, n), make(map[[2]uuid.UUID]*ending, n)
	states, reasons, statuses, delays := make([]string, n), make([]string, n), make([]int32, n), make([]time.Duration, n)
	for i, one := range all {
		claims[i], of[[2]uuid.UUID{one.WorkspaceID, one.ID}] = one.claimed, one
		states[i], reasons[i], statuses[i], delays[i] = one.verdict.state(), one.verdict.reason, int32(one.verdict.status), one.delay
	}
	rows, err := tx.Query(ctx, `
		update outbox o set status = `+stateNow+`, status_code = nullif(r.status_code, 0), last_error = nullif(r.reason, ''), called_at = now(), leased_by = null, lease_until = null,
			due_at = now() + r.delay, finished_at = case when `+stateNow+` <> 'pending' then now() end
		from (
			select * from unnest($1::uuid[], $2::uuid[], $3::text[], $5::text[], $6::int[], $7::text[], $8::interval[]) as r (workspace_id, id, token, status, status_code, reason, delay) limit $4
		) r
		where o.workspace_id = r.workspace_id and o.id = r.id and o.finished_at is null and o.leased_by = r.token
		returning o.workspace_id, o.id, o.status, o.attempts`,
		append(claimsIn(claims, n), states, statuses, reasons, delays, w.options.GiveUp)...)
	if err != nil {
		return nil, err
	}
	var ended []Outcome
	var ws, id pgtype.UUID
	var state string
	var attempts int
	_, err = pgx.ForEachRow(rows, []any{&ws, &id, &state, &attempts}, func() error {
		one := of[[2]uuid.UUID{ws.Bytes, id.Bytes}]
		one.held, one.ended = true, state != "pending"
		if one.ended {
			ended = append(ended, one.outcome(attempts))
		}
		return nil
	})
	return ended, err
}

func (e *ending) outcome(attempts int) Outcome {
	o := Outcome{WorkspaceID: e.WorkspaceID, ID: e.ID, Delivered: e.verdict.delivered(), Status: e.verdict.status, Error: e.verdict.reason, Attempts: attempts}
	if e.EnrollmentID != nil && e.Step != nil {
		o.EnrollmentID, o.Step = *e.EnrollmentID, *e.Step
	}
	return o
}

// delay is how long to wait after a call that was the n-th: as the schedule
// says, give or take a fifth so that messages that failed together do not come
// back together, and no less than the receiver asked for.
func (w *Webhooks) delay(n int, v verdict) time.Duration {
	if v.final {
		return 0
	}
	planned := w.options.BackOff[min(max(n, 1), len(w.options.BackOff))-1]
	planned += time.Duration((rand.Float64() - 0.5) * 0.4 * float64(planned))
	return max(planned, v.retryAfter)
}

// putBack keeps what was heard of a message that could not be settled, so that
// the receiver is not called once more because of what follows here.
func (w *Webhooks) putBack(m claimed, v verdict) error {
	ctx, cancel := context.WithTimeout(context.Background(), settleTime)
	defer cancel()
	wait := w.delay(m.Attempts, verdict{retryAfter: v.retryAfter})
	_, err := w.pool.Exec(ctx, `
		update outbox set answered = $4, status_code = nullif($5::int, 0), last_error = nullif($6, ''), called_at = now(), leased_by = null, lease_until = null,
			due_at = now() + $7::interval
		where workspace_id = $1 and id = $2 and finished_at is null and leased_by = $3`,
		m.WorkspaceID, m.ID, m.LeasedBy, v.final, v.status, v.reason, wait)
	return err
}

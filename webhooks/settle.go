package webhooks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
)

// settle writes down what a call came to: the message has ended, or is due
// again later. The token decides who may: a worker whose lease ran out finds
// that its claim is no longer there and changes nothing. It answers false then.
func (w *Webhooks) settle(ctx context.Context, m claimed, v verdict) (held, ended bool, err error) {
	err = pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		o, state, err := w.writeDown(ctx, tx, m, v)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		held, ended = true, state != "pending"
		if ended && w.settled != nil {
			return w.settled(ctx, tx, o)
		}
		return nil
	})
	if err != nil {
		return false, false, fmt.Errorf("settle message %s: %w", m.ID, err)
	}
	return held, ended, nil
}

// writeDown is the compare-and-set on the token. What would be called again
// only after GiveUp has failed now.
func (w *Webhooks) writeDown(ctx context.Context, tx pgx.Tx, m claimed, v verdict) (o Outcome, state string, err error) {
	err = tx.QueryRow(ctx, `
		with next as (
			select workspace_id, id, case when $4 = 'pending' and created_at + $8::interval < now() + $7::interval then 'failed' else $4 end as state
			from outbox where workspace_id = $1 and id = $2 and state = 'pending' and leased_by = $3 for update
		)
		update outbox o set state = next.state, status_code = nullif($5::int, 0), last_error = nullif($6, ''), called_at = now(), leased_by = null, lease_until = null,
			due_at = now() + $7::interval, finished_at = case when next.state <> 'pending' then now() end
		from next where o.workspace_id = next.workspace_id and o.id = next.id
		returning o.state, o.attempts`,
		m.WorkspaceID, m.ID, m.LeasedBy, v.state(), v.status, v.reason, w.delay(m.Attempts, v), w.options.GiveUp).
		Scan(&state, &o.Attempts)
	o.WorkspaceID, o.ID, o.Delivered, o.Status, o.Error = m.WorkspaceID, m.ID, v.delivered(), v.status, v.reason
	if m.EnrollmentID != nil && m.Step != nil {
		o.EnrollmentID, o.Step = *m.EnrollmentID, *m.Step
	}
	return o, state, err
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
		where workspace_id = $1 and id = $2 and state = 'pending' and leased_by = $3`,
		m.WorkspaceID, m.ID, m.LeasedBy, v.final, v.status, v.reason, wait)
	return err
}

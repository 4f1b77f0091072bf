package direct

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/notifications"
	"lemma/retention"
)

// keyState is the row of a key that a request did not acquire.
type keyState struct {
	I           int
	Same        bool // it is the same request
	Stored      bool
	Token       uuid.UUID
	OriginID    uuid.UUID
	MaxAttempts int16
	SealFor     time.Duration
	Left        float64   // seconds of the lock
	Now         time.Time // by the database's clock
}

// over reports that a stored key is unlocked: its notification has failed for a cause that
// may pass, or the time of its seal is over. It stays so until the key is acquired. A
// notification that has not ended keeps its key. One that is not found was dropped by
// package retention, after its seal, if it is old enough for that.
func (s keyState) over(n *notifications.Notification) bool {
	switch {
	case n == nil:
		return s.Now.Sub(timeOf(s.Token)) > retention.Least
	case n.EndedAt == nil:
		return false
	case n.Status == "failed" && n.Outcome != nil && *n.Outcome == "refused",
		n.Status == "skipped" && n.Reason != nil && *n.Reason == notifications.BatchCrashed:
		return true
	}
	return !n.EndedAt.Add(s.SealFor).After(s.Now)
}

// open reports that a key that is not stored may be acquired: its lock has expired, or is
// that of an earlier attempt.
func (s keyState) open(r *request) bool { return !s.Stored && (s.Left == 0 || s.Token == r.row.Key) }

// answer sets the results of requests whose keys others have, in two reads for all of
// them. Requests whose keys are unlocked have none: they may acquire them, in place of
// their last notifications if they have any.
func (d *Direct) answer(ctx context.Context, ws uuid.UUID, all []*request) error {
	all = slices.DeleteFunc(slices.Clone(all), func(r *request) bool { return r.key == uuid.Nil || r.held })
	if len(all) == 0 {
		return nil
	}
	states, err := d.states(ctx, ws, all)
	if err != nil {
		return err
	}
	found, err := d.notificationsOf(ctx, ws, states)
	if err != nil {
		return err
	}
	for _, s := range states {
		r := all[s.I]
		n := found[s.Token]
		switch {
		case s.open(r):
		case s.Stored && s.over(n):
			r.over = s.Token
		default:
			r.done, r.result = true, s.result(n)
		}
	}
	return nil
}

// notificationsOf reads the notifications of stored keys, by token.
func (d *Direct) notificationsOf(ctx context.Context, ws uuid.UUID, states []keyState) (map[uuid.UUID]*notifications.Notification, error) {
	var origins, tokens []uuid.UUID
	for _, s := range states {
		if s.Stored {
			origins, tokens = append(origins, s.OriginID), append(tokens, s.Token)
		}
	}
	if len(tokens) == 0 {
		return nil, nil //nolint:nilnil // none is stored
	}
	some, err := d.Ledger.Some(ctx, ws, origins, tokens)
	if err != nil {
		return nil, err
	}
	found := make(map[uuid.UUID]*notifications.Notification, len(some))
	for i := range some {
		found[some[i].Key] = &some[i]
	}
	return found, nil
}

// result is the answer to a request under a key in this state.
func (s keyState) result(n *notifications.Notification) Result {
	switch {
	case !s.Same:
		return Result{Err: reused()}
	case !s.Stored || n == nil:
		return Result{Err: &Locked{RetryAfter: time.Duration(max(1, math.Ceil(min(s.Left, 5)))) * time.Second}}
	case n.EndedAt != nil || s.MaxAttempts == 1:
		return Result{Sent: Sent{Notification: *n, Filtered: true}}
	}
	wait := time.Second
	if n.DueAt != nil {
		wait = max(wait, min(n.DueAt.Sub(s.Now).Round(time.Second), MostLock))
	}
	return Result{Err: &Locked{Notification: lemma.FormatNotificationID(n.OriginID, n.Key), RetryAfter: wait}}
}

// left is how long a key k is locked. A key that a request has unlocked is locked until
// -infinity, of which nothing is subtracted.
const left = `case when ` + isLocked + ` then extract(epoch from k.locked_until - now()) else 0 end::float8`

func (d *Direct) states(ctx context.Context, ws uuid.UUID, all []*request) ([]keyState, error) {
	keys, hashes := make([]uuid.UUID, len(all)), make([]uuid.UUID, len(all))
	for i, r := range all {
		keys[i], hashes[i] = r.key, r.Hash
	}
	rows, _ := d.Pool.Query(ctx, `
		select r.i::int - 1 as i, k.request_hash = r.hash as same, k.stored, k.token, k.origin_id, k.max_attempts, k.seal_for,
			`+left+` as left, now() as now
		from unnest($2::uuid[], $3::uuid[]) with ordinality as r (key, hash, i)
		cross join direct_key_periods p
		cross join lateral (
			select k.request_hash, k.stored, k.token, k.origin_id, k.max_attempts, k.seal_for, k.locked_until
			from direct_keys k where k.workspace_id = $1 and k.key = r.key and k.period = p.id limit 1) k`, ws, keys, hashes)
	states, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s keyState, err error) {
		err = row.Scan(&s.I, &s.Same, &s.Stored, &s.Token, &s.OriginID, &s.MaxAttempts, &s.SealFor, &s.Left, &s.Now)
		return s, err
	})
	return states, lemma.Wrap(err, "read keys")
}

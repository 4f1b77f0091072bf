package providers

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"lemma/pgerr"
)

// Acquire acquires n tokens, one per message, from the rate limit of a provider, at
// rate tokens per second. Processes share its meter: next_free_at is the time at
// which the acquired tokens are used up at that rate (the generic cell rate
// algorithm, ITU-T I.371 annex A). While that is more than burst ahead of the
// database's clock, ok is false and wait is the time until then.
//
// In any time t, all processes together acquire at most rate*(t+burst) tokens and
// the n of one last call.
func (p *Providers) Acquire(
	ctx context.Context, ws, id uuid.UUID, n int, rate float64, burst time.Duration,
) (wait time.Duration, ok bool, err error) {
	if n <= 0 || rate <= 0 || burst < 0 {
		return 0, false,
			fmt.Errorf("acquire %d tokens at %g per second with a burst of %s: n and rate must be positive, and burst not negative", n,
				rate, burst)
	}
	var seconds float64
	err = p.pool.QueryRow(ctx, acquire, ws, id, float64(n)/rate, burst.Seconds()).Scan(&ok, &seconds)
	if err := pgerr.Row(err, "provider", "acquire tokens of provider "+id.String()); err != nil {
		return 0, false, err
	}
	if ok {
		return 0, true, nil
	}
	return time.Duration(seconds * float64(time.Second)), false, nil
}

// shorten ends the wait for tokens that were acquired at another rate of a provider: the next
// one comes after one interval of the new rate at the latest, and at once without a rate.
const shorten = `
	update provider_meters set next_free_at = least(next_free_at, now() + make_interval(secs => coalesce(1 / $3::float8, 0)))
	where workspace_id = $1 and provider_id = $2`

// acquire locks the meter first, so that it does not change between the read and
// the update, and both have the same now(). An unused meter has -infinity, of which
// greatest makes now.
const acquire = `
	with meter as materialized (
		select greatest(next_free_at, now()) as free_at, now() + make_interval(secs => $4) as horizon
		from provider_meters where workspace_id = $1 and provider_id = $2
		for update
	), acquired as (
		update provider_meters m set next_free_at = meter.free_at + make_interval(secs => $3)
		from meter where m.workspace_id = $1 and m.provider_id = $2 and meter.free_at <= meter.horizon
	)
	select free_at <= horizon, extract(epoch from free_at - horizon)::float8 from meter`

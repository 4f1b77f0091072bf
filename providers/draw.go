package providers

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"lemma/pgerr"
)

// Draw asks for leave to send n letters at rate letters per second. Nodes
// share a provider's meter: next_free_at is when all that was drawn so far has
// been paid off at that rate (the generic cell rate algorithm, ITU-T I.371
// annex A). While that is more than burst ahead of the database's clock
// nothing is drawn, and wait says for how long.
//
// Over any time t, all nodes together draw at most rate*(t+burst) letters and
// the n of one last call.
func (p *Providers) Draw(ctx context.Context, ws, id uuid.UUID, n int, rate float64, burst time.Duration) (wait time.Duration, ok bool, err error) {
	if n <= 0 || rate <= 0 || burst < 0 {
		return 0, false, fmt.Errorf("draw %d at %g per second with a burst of %s: not a draw", n, rate, burst)
	}
	var seconds float64
	err = p.pool.QueryRow(ctx, draw, ws, id, float64(n)/rate, burst.Seconds()).Scan(&ok, &seconds)
	if err := pgerr.Row(err, "provider", "draw from the rate of provider "+id.String()); err != nil {
		return 0, false, err
	}
	if ok {
		return 0, true, nil
	}
	return time.Duration(seconds * float64(time.Second)), false, nil
}

// draw locks the meter first: what it then reads is what nobody else changes
// before the update, and both see the same now(). A meter that was never used
// says -infinity, which greatest takes for now.
const draw = `
	with meter as materialized (
		select greatest(next_free_at, now()) as free_at, now() + make_interval(secs => $4) as horizon
		from provider_meters where workspace_id = $1 and provider_id = $2
		for update
	), drawn as (
		update provider_meters m set next_free_at = meter.free_at + make_interval(secs => $3)
		from meter where m.workspace_id = $1 and m.provider_id = $2 and meter.free_at <= meter.horizon
	)
	select free_at <= horizon, extract(epoch from free_at - horizon)::float8 from meter`

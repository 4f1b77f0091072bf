package flows_test

import (
	"testing"
)

// The payment of an order is found behind many payments of others, that were received at
// one time or one after another.
func TestAnEventOfExitOnBehindManyOthers(t *testing.T) {
	for name, apart := range map[string]string{"one after another": "1 us", "at one time": "0 s"} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 1)
			flow := b.payable()
			b.order(5)
			b.order(301)
			b.order(601)
			b.Exec(`insert into trigger_events (workspace_id, key, profile_key, name, properties, occurred_at, received_at)
				select $1, lpad(n::text, 32, '0')::uuid, 'c1', 'paid', '{"amount":' || case n when 350 then 601 else 1 end || '}', now(),
					now() + n * $2::interval
				from generate_series(1, 350) n`, b.Workspace, apart)
			b.answers()
			if got, want := b.amounts(flow), "5 refused, 301 active"; got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
			b.Invariants()
		})
	}
}

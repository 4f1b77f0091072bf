package flows

import (
	"context"
	"testing"
	"time"
)

// What is past its retention goes, in as many lots as it takes; the rest stays.
func TestForget(t *testing.T) {
	b := setup(t, 0, func(c *Config) { c.Retention = 48 * time.Hour })
	flow := b.draft(minimal).ID
	b.run(b.pool, `insert into trigger_events (workspace_id, key, profile_key, name, occurred_at, received_at)
		select $1, gen_random_uuid(), 'c1', 'e', now(), now() - case when i % 4 = 0 then interval '47 hours' else interval '49 hours' end from generate_series(1, 16000) i`, b.ws)
	b.refuse(flow, "c1", Filtered, 50*time.Hour)
	b.refuse(flow, "c2", Filtered, 40*time.Hour)
	n, err := b.Forget(context.Background())
	b.must(err)
	if n != 12_001 {
		t.Fatalf("%d forgotten", n)
	}
	if n := b.count(`select count(*) from trigger_events where workspace_id = $1 and received_at > now() - interval '48 hours'`); n != 4000 {
		t.Fatalf("%d events stay", n)
	}
	if n := b.count(`select count(*) from trigger_events where workspace_id = $1`); n != 4000 {
		t.Fatalf("%d events are left", n)
	}
	if n := b.count(`select count(*) from refusals where workspace_id = $1 and profile_key = 'c2'`); n != 1 {
		t.Fatalf("%d refusals are left", n)
	}
	if n, err = b.Forget(context.Background()); n != 0 || err != nil {
		t.Fatalf("%d %v", n, err)
	}
}

// What somebody did on her way is known until its end, however long that takes:
// a branch may ask for it.
func TestEventsOfAJourneyAreKept(t *testing.T) {
	b := setup(t, 0, func(c *Config) { c.Retention = 30 * 24 * time.Hour })
	flow := b.live(`{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"wait","nodes":{
		"wait":{"type":"delay","for":"P60D","next":"ask"},"ask":{"type":"branch","cases":[{"if":"events.bought.times > 0","next":"bought"}],"else":"nag"},
		"bought":{"type":"exit"},"nag":{"type":"exit"}}}`)
	b.tell("c1", "bought") // before she enrolled: nobody asks for it
	b.tell("c1", "go")
	b.settleDown()
	b.tell("c1", "bought")
	b.tell("c2", "bought") // who is not on any way
	events := func() int { return b.count(`select count(*) from trigger_events where workspace_id = $1`) }
	later := func(d time.Duration) {
		t.Helper()
		b.run(b.pool, `update trigger_events set received_at = received_at - $1::interval`, d)
		b.run(b.pool, `update enrollments set enrolled_at = enrolled_at - $1::interval`, d)
		b.pass(d)
		b.must(second(b.Forget(bg)))
	}
	later(31 * 24 * time.Hour)
	if n := events(); n != 2 { // what enrolled her, and what she did then
		t.Errorf("%d events are kept", n)
	}
	later(30 * 24 * time.Hour)
	b.settleDown()
	if e := b.enrollment(flow, "c1"); e.Node != "bought" {
		t.Errorf("%+v", e)
	}
	b.must(second(b.Forget(bg)))
	if n := events(); n != 0 {
		t.Errorf("%d events outlive the journey", n)
	}
}

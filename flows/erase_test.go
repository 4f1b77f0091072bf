package flows_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"lemma"
	"lemma/flows"
	"lemma/flows/enrollment"
	"lemma/flows/flowstest"
	"lemma/pgtest"
)

const manyTraces = `{"audience_id":"$audience","triggers":[{"type":"event","event":"signed_up"}],"recurrence":{"policy":"$policy"},
	"overlap":"allow",
	"start":"hello","nodes":{"hello":{$send,"next":"wait"},"wait":{"type":"wait_for_event","event":"bought","timeout":"P3D","next":"call",
		"on_timeout":"call"},
	"call":{"type":"webhook","endpoint_id":"$endpoint","columns":["name"],"next":"end"},"end":{"type":"exit"}}}`

// mentions counts the rows of all of Lemma's tables that contain a text.
func (b *bundle) mentions(text string) map[string]int {
	b.T.Helper()
	found := map[string]int{}
	for table := range b.RowCounts() {
		if n := b.Count(`select count(*) from `+table+` r where r::text like '%' || $1 || '%'`, text); n > 0 {
			found[table] = n
		}
	}
	return found
}

func (b *bundle) erase(profile string) flows.Erased {
	b.T.Helper()
	e, err := b.Erase(context.Background(), b.Workspace, profile)
	b.Must(err)
	return e
}

// No row names an erased profile: no key, address or event properties. The counts still
// include its enrollments.
func TestErase(t *testing.T) {
	b := setup(t, 2)
	b.ExecDB(`update customers set id = 'annika', email = 'annika@shop.example', name = 'Annika' where id = 'c1'`)
	text := strings.ReplaceAll(manyTraces, "$endpoint", b.Endpoint())
	flow := b.Live(strings.ReplaceAll(text, "$policy", "per_event"))
	once := b.Live(strings.ReplaceAll(text, "$policy", "once"))
	b.RecordEvent("annika", "signed_up", flowstest.Properties(`{"nick":"annika","small":1e-20000,"long":0.`+strings.Repeat("0", 20_000)+`1}`))
	b.Settle()
	b.RecordEvent("annika", "bought", flowstest.Properties(`{"nick":"annika"}`))
	b.Settle() // on the webhook node
	b.RecordEvent("annika", "signed_up", flowstest.Properties(`{"nick":"annika"}`))
	b.Settle()
	b.RecordEvent("c2", "signed_up")
	b.Settle()
	b.Exec(`update batches set status = 'done', sent = size, finished_at = now()`)
	before := b.mentions("nnika")
	for _, table := range []string{"enrollments", "enrollment_steps", "trigger_events", "refusals", "notifications", "outbox"} {
		if before[table] == 0 {
			t.Fatalf("the test has nothing to erase in %s: %v", table, before)
		}
	}

	got := b.erase("annika")
	if d := cmp.Diff(flows.Erased{Enrollments: 3, Exited: 3, Events: 3, Refusals: 1, Notifications: 3}, got); d != "" {
		t.Fatal(d)
	}
	if left := b.mentions("nnika"); len(left) > 0 {
		t.Fatalf("%v", left)
	}
	b.WantCount(3, `select count(*) from enrollments where workspace_id = $1 and status = 'exited' and exit_reason = 'erased'
		and profile_key like 'erased:%'`, b.Workspace)
	if n := len(b.Enrollments(flow, "annika")) + len(b.Enrollments(once, "annika")); n != 0 {
		t.Fatalf("%d are still found", n)
	}
	other := b.Enrollment(once, "c2")
	if other.Status != "waiting" || b.Count(`select count(*) from trigger_events where workspace_id = $1 and profile_key = 'c2'`,
		b.Workspace) != 1 {
		t.Fatalf("another profile was erased too: %+v", other)
	}
	if n := b.Count(`select count(*) from enrollment_steps where workspace_id = $1 and enrollment_id = $2 and data is not null`, b.Workspace,
		other.ID); n == 0 {
		t.Fatal("another profile's history was erased too")
	}
	b.Settle()
	if d := cmp.Diff(flows.Erased{}, b.erase("annika")); d != "" { // a second call finds nothing
		t.Fatal(d)
	}
	if r := b.RecordEvent("annika", "signed_up"); len(r.Results) != 2 {
		t.Fatalf("%+v", r)
	}
	if n := len(b.Enrollments(once, "annika")); n != 0 { // the recurrence once still applies
		t.Fatalf("%d", n)
	}
	b.Invariants()
}

// A month that is detached, since its archive cannot be written, forgets the profile as well:
// else the archive would have it.
func TestEraseInADetachedMonth(t *testing.T) {
	b := setup(t, 2)
	b.Live(flowstest.Welcome)
	b.RecordEvent("c1", "signed_up", flowstest.Properties(`{"secret":"c1 is ill"}`))
	b.RecordEvent("c2", "signed_up", flowstest.Properties(`{"secret":"c2 is ill"}`))
	b.Settle()
	b.Exec(`update batches set status = 'done', sent = size, finished_at = now()`)
	b.Exec(`delete from events_out`) // which have one item for each step
	var months []string
	for _, table := range []string{"notifications", "enrollment_steps"} {
		month := pgtest.One[string](t, b.Pool, `select tableoid::regclass::text from `+table+` limit 1`)
		b.Exec(`alter table ` + table + ` detach partition ` + month)
		months = append(months, month)
	}
	if got := b.erase("c1"); got.Enrollments != 1 || got.Notifications != 1 {
		t.Errorf("%+v", got)
	}
	for _, month := range months {
		b.WantCount(0, `select count(*) from `+month+` r where r::text like '%c1@shop.example%' or r::text like '%c1 is ill%'`)
	}
	b.WantCount(1, `select count(*) from `+months[0]+` where address = 'c2@shop.example'`)
	b.WantCount(1, `select count(*) from `+months[1]+` where data like '%c2 is ill%'`)
}

// Data that a carrier may still be called with stays until its batch has ended: a second
// attempt has the same bytes. A later call erases it.
func TestEraseWaitsForWhatIsInFlight(t *testing.T) {
	b := setup(t, 1)
	b.Live(flowstest.Welcome)
	b.RecordEvent("c1", "signed_up")
	b.Settle()
	batch := b.one(`select id from batches where workspace_id = $1`)
	is := func(when string, want flows.Erased, intact int) {
		t.Helper()
		if d := cmp.Diff(want, b.erase("c1")); d != "" {
			t.Fatalf("%s: %s", when, d)
		}
		b.WantCount(intact, `select count(*) from notifications where workspace_id = $1 and profile_key = 'c1' and address = 'c1@shop.example'
			and payload is not null`, b.Workspace)
	}
	is("ready", flows.Erased{Exited: 1, Events: 1, InFlight: 1}, 1)
	b.Exec(`update batches set status = 'leased', leased_by = 'w', lease_until = now() + interval '1 minute' where id = $1`, batch)
	is("leased", flows.Erased{InFlight: 1}, 1)
	b.Exec(`update batches set status = 'done', leased_by = null, lease_until = null, retried = size, finished_at = now()
		where id = $1`, batch)
	b.Exec(`
		insert into batches (workspace_id, origin_id, id, root_id, provider_id, content_id, size, attempt, max_attempts, open, members)
		select workspace_id, origin_id, $2, id, provider_id, content_id, size, 2, 2, '{0}', '{0}' from batches where id = $1`, batch,
		lemma.NewID())
	is("a second attempt is ready", flows.Erased{InFlight: 1}, 1)
	b.Exec(`update batches set status = 'done', sent = size, finished_at = now() where attempt = 2`)
	is("ended", flows.Erased{Enrollments: 1, Notifications: 1}, 0)
	b.WantCount(1, `select count(*) from notifications where workspace_id = $1 and profile_key like 'erased:%' and address = 'erased'
		and payload is null`, b.Workspace)
	is("again", flows.Erased{}, 0)
	b.Invariants()
}

// one reads a single id.
func (b *bundle) one(sql string, args ...any) uuid.UUID {
	b.T.Helper()
	return pgtest.One[uuid.UUID](b.T, b.Pool, sql, append([]any{b.Workspace}, args...)...)
}

// A worker that has read an enrollment before the profile is erased, and writes
// afterwards, does nothing: no message and no step names the profile.
func TestEraseWhileAWorkerHoldsALock(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(flowstest.Welcome)
	b.RecordEvent("c1", "signed_up")
	worker := b.Another()
	worker.Hook.Do = func(stage string) {
		if stage == "evaluated" {
			worker.Hook.Do = nil
			b.erase("c1")
		}
	}
	if _, err := worker.RunOnce(context.Background()); err != nil {
		t.Fatal(err)
	}
	b.Settle()
	if b.Notifications() != 0 || len(b.mentions("c1@shop.example")) > 0 || len(b.Enrollments(flow, "c1")) != 0 {
		t.Fatalf("%v", b.mentions("c1"))
	}
	b.Invariants()
}

// The address of a skipped message is stored too, and is erased.
func TestEraseASkippedProfile(t *testing.T) {
	b := setup(t, 1)
	b.ExecDB(`update customers set opted_out = true`)
	b.Live(flowstest.Welcome)
	b.RecordEvent("c1", "signed_up")
	b.Settle()
	if n := b.mentions("c1@shop.example")["notifications"]; n != 1 {
		t.Fatalf("the address is kept %d times", n)
	}
	if e := b.erase("c1"); e.Notifications != 1 || e.InFlight != 0 {
		t.Errorf("%+v", e)
	}
	if left := b.mentions("c1@shop.example"); len(left) > 0 {
		t.Errorf("the address is left in %v", left)
	}
}

// A profile with more rows than one page is erased by pages. A call that ends before the last
// page reports it, and the next one goes on.
func TestEraseByPages(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(strings.ReplaceAll(strings.ReplaceAll(manyTraces, "$endpoint", b.Endpoint()), "$policy", "per_event"))
	b.RecordEvent("c1", "signed_up")
	b.Settle()
	b.Exec(`
		insert into enrollments (workspace_id, id, flow_id, version, shard, uniqueness_key, overlap_key, profile_key, status, node, source,
			ended_at, exit_reason)
		select $1, gen_random_uuid(), $2, 1, 0, gen_random_uuid(), gen_random_uuid(), 'c1', 'exited', 'wait', 'event', now(), 'manual'
		from generate_series(1, $3::int)`, b.Workspace, flow, 2*flows.EraseEnrollments)
	b.CountEnded(flow)
	b.Exec(`
		insert into trigger_events (workspace_id, key, profile_key, name, properties, occurred_at)
		select $1, gen_random_uuid(), 'c1', 'seen', '{}', now() from generate_series(1, $2::int)`, b.Workspace, 2*flows.EraseTriggers)
	b.Exec(`
		insert into refusals (workspace_id, flow_id, key, profile_key, reason, source)
		select $1, $2, gen_random_uuid(), 'c1', 'filtered', 'event' from generate_series(1, $3::int)`, b.Workspace, flow, flows.EraseTriggers)
	b.SetEraseTime(0)
	first := flows.Erased{Enrollments: flows.EraseEnrollments - 1, Exited: 1, Events: flows.EraseTriggers, Refusals: flows.EraseTriggers,
		InFlight: 1, More: true}
	if d := cmp.Diff(first, b.erase("c1")); d != "" {
		t.Error(d)
	}
	b.WantCount(1, `select count(*) from enrollments where profile_key = 'c1' and status = 'exited' and exit_reason = 'erased'`)
	b.SetEraseTime(time.Minute)
	rest := flows.Erased{Enrollments: flows.EraseEnrollments + 1, Events: flows.EraseTriggers + 1, InFlight: 1}
	if d := cmp.Diff(rest, b.erase("c1")); d != "" {
		t.Error(d)
	}
	b.Exec(`update batches set status = 'done', sent = size, finished_at = now()`)
	if d := cmp.Diff(flows.Erased{Enrollments: 1, Notifications: 1}, b.erase("c1")); d != "" {
		t.Error(d)
	}
	if left := b.mentions(",c1,"); len(left) > 0 {
		t.Errorf("%v", left)
	}
}

// Invalid keys are refused, and the key of an erased profile maps to itself.
func TestEraseKeys(t *testing.T) {
	b := setup(t, 0)
	for _, key := range []string{"", "a\x00b", "\xff", strings.Repeat("k", 256)} {
		if e := b.Wants(lemma.Invalid,
			flowstest.Second(b.Erase(context.Background(), b.Workspace, key))); flowstest.Pointers(e) != "/profile_key invalid_key" {
			t.Errorf("%q: %s", key, flowstest.Pointers(e))
		}
	}
	if as := enrollment.ErasedKey("c1"); enrollment.ErasedKey(as) != as || as == enrollment.ErasedKey("c2") || len(as) != len("erased:")+16 {
		t.Error(as)
	}
	if d := cmp.Diff(flows.Erased{}, b.erase("an unknown profile")); d != "" {
		t.Error(d)
	}
}

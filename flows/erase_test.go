package flows

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
)

const manyTraces = `{"audience_id":"$audience","triggers":[{"type":"event","event":"signed_up"}],"recurrence":{"policy":"$policy"},"overlap":"allow",
	"start":"hello","nodes":{"hello":{$send,"next":"wait"},"wait":{"type":"wait_for_event","event":"bought","timeout":"P3D","next":"call","on_timeout":"call"},
	"call":{"type":"webhook","endpoint_id":"$endpoint","columns":["name"],"next":"end"},"end":{"type":"exit"}}}`

// mentions counts the rows of all of Lemma's tables that say a text.
func (b *bundle) mentions(text string) map[string]int {
	b.t.Helper()
	found := map[string]int{}
	for table := range b.rows() {
		if n := b.countAll(`select count(*) from `+table+` r where r::text like '%' || $1 || '%'`, text); n > 0 {
			found[table] = n
		}
	}
	return found
}

// rows counts the rows of each table.
func (b *bundle) rows() map[string]int {
	b.t.Helper()
	names, err := b.pool.Query(context.Background(), `select relname from pg_class where relnamespace = 'public'::regnamespace and relkind in ('r', 'p') and not relispartition`)
	b.must(err)
	tables, err := pgx.CollectRows(names, pgx.RowTo[string])
	b.must(err)
	counts := map[string]int{}
	for _, table := range tables {
		counts[table] = b.countAll(`select count(*) from ` + table)
	}
	return counts
}

func (b *bundle) countAll(sql string, args ...any) (n int) {
	b.t.Helper()
	b.must(b.pool.QueryRow(context.Background(), sql, args...).Scan(&n))
	return n
}

func (b *bundle) erase(who string) Erased {
	b.t.Helper()
	e, err := b.Erase(context.Background(), b.ws, who)
	b.must(err)
	return e
}

// Nothing names an erased person any more: not her key, her address, nor
// anything that she did. That there was somebody is still counted.
func TestErase(t *testing.T) {
	b := setup(t, 2)
	b.run(b.shop, `update customers set id = 'annika', email = 'annika@shop.example', name = 'Annika' where id = 'c1'`)
	text := strings.ReplaceAll(manyTraces, "$endpoint", b.endpoint())
	flow := b.live(strings.ReplaceAll(text, "$policy", "per_event"))
	once := b.live(strings.ReplaceAll(text, "$policy", "once"))
	b.tell("annika", "signed_up", properties(`{"nick":"annika"}`))
	b.settleDown()
	b.tell("annika", "bought", properties(`{"nick":"annika"}`))
	b.settleDown() // at the webhook
	b.tell("annika", "signed_up", properties(`{"nick":"annika"}`))
	b.settleDown()
	b.tell("c2", "signed_up")
	b.settleDown()
	b.run(b.pool, `update batches set state = 'done', sent = size, finished_at = now()`)
	before := b.mentions("nnika")
	for _, table := range []string{"enrollments", "enrollment_steps", "trigger_events", "refusals", "notifications", "outbox"} {
		if before[table] == 0 {
			t.Fatalf("the test has nothing to erase in %s: %v", table, before)
		}
	}

	got := b.erase("annika")
	if d := cmp.Diff(Erased{Enrollments: 3, Exited: 3, Events: 3, Refusals: 1, Notifications: 3}, got); d != "" {
		t.Fatal(d)
	}
	if left := b.mentions("nnika"); len(left) > 0 {
		t.Fatalf("%v", left)
	}
	if n := b.count(`select count(*) from enrollments where workspace_id = $1 and status = 'exited' and exit_reason = 'erased' and profile_key like 'erased:%'`); n != 3 {
		t.Fatalf("%d", n)
	}
	if n := len(b.enrollments(flow, "annika")) + len(b.enrollments(once, "annika")); n != 0 {
		t.Fatalf("%d are still found", n)
	}
	other := b.enrollment(once, "c2")
	if other.Status != "waiting" || b.count(`select count(*) from trigger_events where workspace_id = $1 and profile_key = 'c2'`) != 1 {
		t.Fatalf("somebody else was erased too: %+v", other)
	}
	if n := b.count(`select count(*) from enrollment_steps where workspace_id = $1 and enrollment_id = $2 and data is not null`, other.ID); n == 0 {
		t.Fatal("somebody else's history was erased too")
	}
	b.settleDown()
	if d := cmp.Diff(Erased{}, b.erase("annika")); d != "" { // again, there is nothing
		t.Fatal(d)
	}
	if r := b.tell("annika", "signed_up"); len(r.Results) != 2 {
		t.Fatalf("%+v", r)
	}
	if n := len(b.enrollments(once, "annika")); n != 0 { // once is once
		t.Fatalf("%d", n)
	}
	b.invariants()
}

// What a carrier may still be called with stays until its batch has ended: a
// second attempt says the same bytes. Asked again, it goes.
func TestEraseWaitsForWhatIsInFlight(t *testing.T) {
	b := setup(t, 1)
	b.live(welcome)
	b.tell("c1", "signed_up")
	b.settleDown()
	batch := b.one(`select id from batches where workspace_id = $1`)
	is := func(when string, want Erased, intact int) {
		t.Helper()
		if d := cmp.Diff(want, b.erase("c1")); d != "" {
			t.Fatalf("%s: %s", when, d)
		}
		if n := b.count(`select count(*) from notifications where workspace_id = $1 and profile_key = 'c1' and address = 'c1@shop.example' and payload is not null`); n != intact {
			t.Fatalf("%s: %d intact", when, n)
		}
	}
	is("ready", Erased{Enrollments: 1, Exited: 1, Events: 1, InFlight: 1}, 1)
	b.run(b.pool, `update batches set state = 'leased', leased_by = 'w', lease_until = now() + interval '1 minute' where id = $1`, batch)
	is("leased", Erased{InFlight: 1}, 1)
	b.run(b.pool, `update batches set state = 'done', leased_by = null, lease_until = null, retried = size, finished_at = now() where id = $1`, batch)
	b.run(b.pool, `insert into batches (workspace_id, origin_id, id, root_id, provider_id, content_id, size, attempt, max_attempts, open)
		select workspace_id, origin_id, $2, id, provider_id, content_id, size, 2, 2, '{0}' from batches where id = $1`, batch, lemma.NewID())
	is("a second attempt is ready", Erased{InFlight: 1}, 1)
	b.run(b.pool, `update batches set state = 'done', sent = size, finished_at = now() where attempt = 2`)
	is("ended", Erased{Notifications: 1}, 0)
	if n := b.count(`select count(*) from notifications where workspace_id = $1 and profile_key like 'erased:%' and address = 'erased' and payload is null`); n != 1 {
		t.Fatalf("%d erased", n)
	}
	is("again", Erased{}, 0)
	b.invariants()
}

// one reads the only id.
func (b *bundle) one(sql string, args ...any) (id uuid.UUID) {
	b.t.Helper()
	b.must(b.pool.QueryRow(context.Background(), sql, append([]any{b.ws}, args...)...).Scan(&id))
	return id
}

// A worker that has read somebody before she is erased, and comes to move her
// after, does nothing: neither a letter nor a step names her.
func TestEraseWhileAWorkerHoldsHer(t *testing.T) {
	b := setup(t, 1)
	flow := b.live(welcome)
	b.tell("c1", "signed_up")
	worker := b.another()
	worker.hook = func(stage string) {
		if stage == "walked" {
			worker.hook = nil
			b.erase("c1")
		}
	}
	if _, err := worker.RunOnce(context.Background()); err != nil {
		t.Fatal(err)
	}
	b.settleDown()
	if b.notifications() != 0 || len(b.mentions("c1@shop.example")) > 0 || len(b.enrollments(flow, "c1")) != 0 {
		t.Fatalf("%v", b.mentions("c1"))
	}
	b.invariants()
}

// Of who was skipped the address is kept too, and goes with her.
func TestEraseWhoWasSkipped(t *testing.T) {
	b := setup(t, 1)
	b.run(b.shop, `update customers set opted_out = true`)
	b.live(welcome)
	b.tell("c1", "signed_up")
	b.settleDown()
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

// Broken keys are refused, and the key that stands for an erased person stands
// for itself.
func TestEraseKeys(t *testing.T) {
	b := setup(t, 0)
	for _, key := range []string{"", "a\x00b", "\xff", strings.Repeat("k", 256)} {
		if e := b.wants(lemma.Invalid, second(b.Erase(context.Background(), b.ws, key))); pointers(e) != "/profile_key invalid_key" {
			t.Errorf("%q: %s", key, pointers(e))
		}
	}
	if as := erasedAs("c1"); erasedAs(as) != as || as == erasedAs("c2") || len(as) != len("erased:")+16 {
		t.Error(as)
	}
	if d := cmp.Diff(Erased{}, b.erase("never heard of")); d != "" {
		t.Error(d)
	}
}

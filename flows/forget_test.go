package flows_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"lemma/flows"
	"lemma/flows/enrollment"
	"lemma/flows/flowstest"
)

// Rows past their retention are deleted, in as many chunks as it takes; the others stay.
func TestForget(t *testing.T) {
	b := setup(t, 0, func(c *flows.Config) { c.Retention = 48 * time.Hour })
	flow := b.NewDraft(flowstest.Minimal).ID
	b.Exec(`insert into trigger_events (workspace_id, key, profile_key, name, occurred_at, received_at)
		select $1, gen_random_uuid(), 'c1', 'e', now(), now() - case when i % 4 = 0 then interval '47 hours' else interval '49 hours' end
			from generate_series(1, 16000) i`, b.Workspace)
	b.Refuse(flow, "c1", enrollment.Filtered, 50*time.Hour)
	b.Refuse(flow, "c2", enrollment.Filtered, 40*time.Hour)
	n, err := b.Forget(context.Background())
	b.Must(err)
	if n != 12_001 {
		t.Fatalf("%d forgotten", n)
	}
	b.WantCount(4000, `select count(*) from trigger_events where workspace_id = $1 and received_at > now() - interval '48 hours'`,
		b.Workspace)
	b.WantCount(4000, `select count(*) from trigger_events where workspace_id = $1`, b.Workspace)
	b.WantCount(1, `select count(*) from refusals where workspace_id = $1 and profile_key = 'c2'`, b.Workspace)
	if n, err = b.Forget(context.Background()); n != 0 || err != nil {
		t.Fatalf("%d %v", n, err)
	}
}

// Events and refusals are kept for the longest retention of all processes.
func TestTheLongestRetentionOfEventsHolds(t *testing.T) {
	b := setup(t, 0, func(c *flows.Config) { c.Retention = 48 * time.Hour })
	flow := b.NewDraft(flowstest.Minimal).ID
	b.Exec(`insert into settings (name, value, started_at) values ('LEMMA_EVENT_RETENTION', '24h0m0s', now()),
		('LEMMA_EVENT_RETENTION', '1440h30m0s', now() - interval '1 day'), ('LEMMA_BATCH_LOG_RETENTION', '2160h0m0s', now())`)
	b.Exec(`insert into trigger_events (workspace_id, key, profile_key, name, occurred_at, received_at)
		select $1, gen_random_uuid(), 'c1', 'e', now(), now() - i * interval '1 day' from unnest('{1, 59, 61}'::int[]) i`, b.Workspace)
	b.Refuse(flow, "c1", enrollment.Filtered, 59*24*time.Hour)
	b.Refuse(flow, "c2", enrollment.Filtered, 61*24*time.Hour)
	if n, err := b.Forget(t.Context()); n != 2 || err != nil {
		t.Errorf("%d forgotten, %v", n, err)
	}
	if kept, err := b.Retention(t.Context()); kept != 1440*time.Hour+30*time.Minute || err != nil {
		t.Errorf("kept for %v, %v", kept, err)
	}
	b.Exec(`delete from settings`)
	if kept, err := b.Retention(t.Context()); kept != 48*time.Hour || err != nil {
		t.Errorf("without another process kept for %v, %v", kept, err)
	}
}

// Rows of one time are one page, so that a page that begins after a time leaves out none of
// that time. A statement reads no more than that.
func TestForgetReadsPages(t *testing.T) {
	b := setup(t, 0, func(c *flows.Config) { c.Retention = 48 * time.Hour })
	flow := b.NewDraft(flowstest.Minimal).ID
	b.Exec(`insert into trigger_events (workspace_id, key, profile_key, name, occurred_at, received_at)
		select $1, gen_random_uuid(), 'c1', 'e', now(), now() - interval '50 hours' - i / 25 * interval '1 minute'
		from generate_series(0, 99) i`, b.Workspace)
	for i := range 30 {
		b.Refuse(flow, fmt.Sprint("c", i), enrollment.Filtered, 50*time.Hour)
	}
	b.Exec(`update refusals set at = now() - interval '50 hours'`)
	p, seen := b.Traced()
	read := 0
	seen.Stop = func(sql string) {
		if strings.Contains(sql, "with ties") && strings.Contains(sql, "from trigger_events") {
			read++
		}
	}
	p.SetForgetPage(10)
	n, err := p.Forget(context.Background())
	b.Must(err)
	if n != 130 || read != 5 { // four times, and nothing
		t.Errorf("%d forgotten by %d statements", n, read)
	}
}

// The events of an active enrollment are kept until its end, however long that takes: a
// branch may read them.
func TestEventsOfAnEnrollmentAreKept(t *testing.T) {
	b := setup(t, 0, func(c *flows.Config) { c.Retention = 30 * 24 * time.Hour })
	flow := b.Live(`{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"wait","nodes":{
		"wait":{"type":"delay","for":"P60D","next":"ask"},"ask":{"type":"branch","cases":[{"if":"events.bought.times > 0","next":"bought"}],
			"else":"nag"},
		"bought":{"type":"exit"},"nag":{"type":"exit"}}}`)
	b.RecordEvent("c1", "bought") // before the enrollment: nothing reads it
	b.RecordEvent("c1", "go")
	b.Settle()
	b.RecordEvent("c1", "bought")
	b.RecordEvent("c2", "bought") // without an enrollment
	events := func() int { return b.Count(`select count(*) from trigger_events where workspace_id = $1`, b.Workspace) }
	later := func(d time.Duration) {
		t.Helper()
		b.Exec(`update trigger_events set received_at = received_at - $1::interval`, d)
		b.Exec(`update enrollments set enrolled_at = enrolled_at - $1::interval`, d)
		b.Pass(d)
		b.Must(flowstest.Second(b.Forget(bg)))
	}
	later(31 * 24 * time.Hour)
	if n := events(); n != 2 { // the trigger, and the event after it
		t.Errorf("%d events are kept", n)
	}
	later(30 * 24 * time.Hour)
	b.Settle()
	if e := b.Enrollment(flow, "c1"); e.Node != "bought" {
		t.Errorf("%+v", e)
	}
	b.Must(flowstest.Second(b.Forget(bg)))
	if n := events(); n != 0 {
		t.Errorf("%d events outlive the enrollment", n)
	}
}

// The events that an experiment counts are kept until it has a verdict: those between its
// start and its cut-off.
func TestEventsOfAnExperimentAreKept(t *testing.T) {
	b := setup(t, 0, func(c *flows.Config) { c.Retention = 48 * time.Hour })
	b.Exec(`alter table iterations drop constraint iterations_workspace_id_campaign_id_fkey`) // without a campaign
	b.Exec(`insert into iterations (workspace_id, id, campaign_id, status, sample_percent, holdout_percent, metric, event_name, duration,
			started_at, cut_off_at)
		values ($1, gen_random_uuid(), gen_random_uuid(), 'running', 10, 0, 'event', 'bought', '17 days', now() - interval '20 days',
			now() - interval '3 days')`, b.Workspace)
	for _, e := range []struct {
		name string
		ago  string
	}{{"bought", "21 days"}, {"bought", "19 days"}, {"bought", "4 days"}, {"bought", "60 hours"}, {"opened", "19 days"}} {
		b.Exec(`insert into trigger_events (workspace_id, key, profile_key, name, occurred_at, received_at)
			values ($1, gen_random_uuid(), 'c1', $2, now(), now() - $3::interval)`, b.Workspace, e.name, e.ago)
	}
	n, err := b.Forget(bg)
	b.Must(err)
	if n != 3 {
		t.Errorf("%d events are forgotten, want those before the start, after the cut-off and of another name", n)
	}
	b.Exec(`update iterations set status = 'inconclusive'`)
	if n, err = b.Forget(bg); n != 2 || err != nil {
		t.Errorf("%d events are forgotten after the verdict: %v", n, err)
	}
}

// What keeps events is read once for a profile and a name, and not once for each event: else
// one workspace ends the retention of all.
func TestWhatKeepsEventsIsReadOnce(t *testing.T) {
	b := setup(t, 0, func(c *flows.Config) { c.Retention = 48 * time.Hour })
	const many, events = 40, 500
	b.Live(`{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"per_event"},"overlap":"allow","start":"wait","nodes":{
		"wait":{"type":"delay","for":"P60D","next":"end"},"end":{"type":"exit"}}}`)
	for range many {
		b.RecordEvent("c1", "go")
	}
	b.Settle()
	b.Exec(`alter table iterations drop constraint iterations_workspace_id_campaign_id_fkey`) // without a campaign
	b.Exec(`insert into iterations (workspace_id, id, campaign_id, status, sample_percent, holdout_percent, metric, event_name, duration,
			started_at, cut_off_at)
		select $1, gen_random_uuid(), gen_random_uuid(), 'running', 10, 0, 'event', 'bought', '17 days', now(), now() + interval '17 days'
		from generate_series(1, $2)`, b.Workspace, many)
	b.Exec(`insert into trigger_events (workspace_id, key, profile_key, name, occurred_at, received_at)
		select $1, gen_random_uuid(), 'c1', 'bought', now(), now() - interval '50 days' from generate_series(1, $2)`, b.Workspace, events)
	tx, err := b.Pool.Begin(bg)
	b.Must(err)
	defer func() { _ = tx.Rollback(bg) }()
	rows := func() (n int) {
		t.Helper()
		b.Must(tx.QueryRow(bg, `select sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::int from pg_stat_xact_user_tables
			where relname in ('enrollments', 'iterations')`).Scan(&n))
		return n
	}
	before := rows()
	if n, gone, err := b.FindOldEvents(bg, tx); n != events || gone != events || err != nil {
		t.Errorf("%d events, of which %d go: %v", n, gone, err)
	}
	if n := rows() - before; n > 10*many {
		t.Errorf("%d rows are read of %d enrollments and %d experiments", n, many, many)
	}
}

// Events that are kept for an enrollment hold up no others, also if they fill pages.
func TestKeptEventsHoldUpNoOthers(t *testing.T) {
	b := setup(t, 0, func(c *flows.Config) { c.Retention = 48 * time.Hour })
	b.SetForgetPage(10)
	b.Live(`{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"wait","nodes":{
		"wait":{"type":"delay","for":"P60D","next":"end"},"end":{"type":"exit"}}}`)
	b.RecordEvent("kept", "go")
	b.Exec(`update enrollments set enrolled_at = enrolled_at - interval '60 days'`)
	b.Exec(`update trigger_events set received_at = received_at - interval '60 days'`)
	b.Exec(`insert into trigger_events (workspace_id, key, profile_key, name, occurred_at, received_at)
		select $1, gen_random_uuid(), case when i > 95 then 'other' else 'kept' end, 'e', now(),
			now() - interval '50 days' + i / 3 * interval '1 minute'
		from generate_series(1, 100) i`, b.Workspace)
	n, err := b.Forget(context.Background())
	b.Must(err)
	if n != 5 {
		t.Errorf("%d forgotten", n)
	}
	b.WantCount(96, `select count(*) from trigger_events where workspace_id = $1`, b.Workspace)
}

// An enrollment waits at its entry for longer than the retention. The events behind it and
// their refusals are kept, also behind the enrollment of the event that is offered again.
func TestWhatMayBeOfferedAgainIsKept(t *testing.T) {
	b := setup(t, 1, func(c *flows.Config) { c.Retention = time.Hour })
	flow := b.largeOrders(`{"policy":"per_event"}`, "")
	for _, amount := range []int{5, 301, 7} {
		b.order(amount)
	}
	forget := func() {
		t.Helper()
		b.ago(2 * time.Hour)
		b.Exec(`update refusals set at = at - interval '2 hours' where workspace_id = $1`, b.Workspace)
		b.Must(flowstest.Second(b.Forget(context.Background())))
	}
	forget()
	b.ExecDB(`alter table gone rename to customers`)
	worker := b.StopAt("acted")
	b.Reached(worker) // it refuses 5, and offers 7 again
	b.ExecDB(`alter table customers rename to gone`)
	b.Must(worker.End())
	b.Settle()
	if got, want := b.amounts(flow), "5 refused, 7 active"; got != want {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
	forget()
	b.answers()
	if got, want := b.amounts(flow), "5 refused, 7 refused, 301 active"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	forget()
	b.WantCount(0, `select count(*) from refusals where workspace_id = $1`, b.Workspace)
	b.Invariants()
}

// A chunk that cannot be deleted stops neither those after it, nor the refusals.
func TestForgetGoesOnPastAChunkThatFails(t *testing.T) {
	b := setup(t, 0, func(c *flows.Config) { c.Retention = 48 * time.Hour })
	flow := b.NewDraft(flowstest.Minimal).ID
	b.Exec(`insert into trigger_events (workspace_id, key, profile_key, name, occurred_at, received_at)
		select $1, gen_random_uuid(), 'c1', 'e', now(), now() - interval '70 hours' + i * interval '1 second' from generate_series(1, 5100) i`,
		b.Workspace)
	b.Exec(`create table uses (workspace_id uuid, key uuid, foreign key (workspace_id, key) references trigger_events (workspace_id, key))`)
	b.Exec(`insert into uses select workspace_id, key from trigger_events where workspace_id = $1 order by received_at limit 1`, b.Workspace)
	b.Refuse(flow, "c1", enrollment.Filtered, 50*time.Hour)
	if n, err := b.Forget(t.Context()); n != 101 || err == nil {
		t.Errorf("%d forgotten, %v", n, err)
	}
}

// A lock on the table blocks all chunks, each for the statement_timeout: a run ends after a few,
// and the refusals are deleted all the same.
func TestForgetEndsWhileALockBlocksIt(t *testing.T) {
	b := setup(t, 0, func(c *flows.Config) { c.Retention = 48 * time.Hour })
	flow := b.NewDraft(flowstest.Minimal).ID
	b.Exec(`insert into trigger_events (workspace_id, key, profile_key, name, occurred_at, received_at)
		select $1, gen_random_uuid(), 'c1', 'e', now(), now() - interval '70 hours' + i * interval '1 second' from generate_series(1, 100) i`,
		b.Workspace)
	b.Refuse(flow, "c1", enrollment.Filtered, 50*time.Hour)
	b.Exec(`create function blocked() returns trigger language plpgsql as
		$$ begin raise exception 'canceling statement due to statement timeout' using errcode = '57014'; end $$`)
	b.Exec(`create trigger blocked before delete on trigger_events execute function blocked()`)
	p, seen := b.Traced()
	deletes := 0
	seen.Stop = func(sql string) {
		if strings.HasPrefix(sql, "delete from trigger_events") {
			deletes++
		}
	}
	p.SetForgetPage(10)
	if n, err := p.Forget(t.Context()); n != 1 || deletes != 3 || err == nil {
		t.Errorf("%d forgotten after %d deletes: %v", n, deletes, err)
	}
	b.Exec(`drop trigger blocked on trigger_events`)
	if n, err := p.Forget(t.Context()); n != 100 || err != nil {
		t.Errorf("%d forgotten without the lock: %v", n, err)
	}
}

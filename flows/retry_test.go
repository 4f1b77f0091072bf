package flows_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma/flows"
	"lemma/flows/flowstest"
	"lemma/pgtest"
)

// hangs makes the shop's customers unreadable until it is released.
func (b *bundle) hangs() (unlock func()) {
	b.T.Helper()
	tx, err := b.DB.Begin(bg)
	b.Must(err)
	b.T.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	_, err = tx.Exec(bg, `lock table customers in access exclusive mode`)
	b.Must(err)
	return func() { b.Must(tx.Rollback(bg)) }
}

// opens lets every source be queried at once, as after its delay.
func (b *bundle) opens() {
	b.Execution.Sources.Reopen()
}

// soon counts the enrollments that are due within the next seconds, and later ones.
func (b *bundle) soon() (soon, later int) {
	b.T.Helper()
	return b.Count(`select count(*) from enrollments where workspace_id = $1 and blocked_reason is not null
		and resume_at <= now() + interval '5 seconds'`, b.Workspace),
		b.Count(`select count(*) from enrollments where workspace_id = $1 and blocked_reason is not null
			and resume_at > now() + interval '5 seconds'`, b.Workspace)
}

const asksProfiles = `{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"e",
	"nodes":{"e":{"type":"exit"}}}`

// After a source has answered, the enrollments that wait for it with a long back-off are
// soon retried, of this flow and of others, and none that wait for another reason.
func TestASourceThatRecoversReleasesAll(t *testing.T) {
	b := setup(t, 20, func(c *flows.Config) { c.BackOff, c.MaxBackOff = time.Hour, time.Hour })
	flow := b.Live(asksProfiles)
	other := b.Live(`{"audience_id":"$audience","triggers":[{"type":"event","event":"ask"}],"recurrence":{"policy":"once"},
		"start":"b","nodes":{
		"b":{"type":"branch","cases":[{"sql":"select profile_key from people p ` +
		`where exists (select from customers c where c.id = p.profile_key)","next":"e"}],"else":"e"},
			"e":{"type":"exit"}}}`)
	unlock := b.hangs()
	for i := range 10 {
		b.RecordEvent(fmt.Sprint("c", i+1), "go")
		b.RecordEvent(fmt.Sprint("c", i+1), "ask")
	}
	b.Settle()
	b.Exec(`update enrollments set blocked_reason = 'source_changed' where profile_key = 'c1' and flow_id = $1`, flow)
	b.Exec(`update enrollments set blocked_reason = 'source_refused' where profile_key = 'c2'`)
	b.Exec(`update enrollments set blocked_reason = 'source_malformed' where profile_key = 'c3'`)
	polled := b.Live(`{"audience_id":"$audience","triggers":[{"type":"audience","every":"P1D"}],"recurrence":{"policy":"once"},"start":"e",
		"nodes":{"e":{"type":"exit"}}}`)
	b.Exec(`update flow_polls set failures = 3, next_at = now() + interval '10 minutes' where flow_id = $1`, polled)
	unlock()
	if soon, later := b.soon(); soon != 0 || later != 20 {
		t.Fatalf("%d are due soon and %d later", soon, later)
	}
	b.Must(b.Tick(bg))
	if soon, _ := b.soon(); soon != 0 {
		t.Errorf("%d are retried before the source is queried again", soon)
	}
	b.opens()
	b.RecordEvent("c20", "go")
	b.Settle()
	b.Must(b.Tick(bg))
	b.WantCount(1, `select count(*) from flow_polls where workspace_id = $1 and next_at <= now()`, b.Workspace)
	if soon, later := b.soon(); soon != 19 || later != 1 {
		t.Errorf("%d are due soon and %d later", soon, later)
	}
	b.Exec(`update enrollments set resume_at = now() where blocked_reason <> 'source_changed'`)
	b.opens()
	b.Settle()
	b.WantCount(1, `select count(*) from enrollments where workspace_id = $1 and flow_id = any(array[$2, $3]::uuid[])
		and status = 'active'`, b.Workspace, flow, other)
	b.Invariants()
}

// Without other queries, one waiting enrollment retries the source periodically, and when
// it is answered the others follow.
func TestOneWaitingEnrollmentTriesTheSource(t *testing.T) {
	b := setup(t, 10, func(c *flows.Config) { c.BackOff, c.MaxBackOff = time.Hour, time.Hour })
	flow := b.Live(asksProfiles)
	unlock := b.hangs()
	for i := range 10 {
		b.RecordEvent(fmt.Sprint("c", i+1), "go")
	}
	b.Settle()
	b.Must(b.Tick(bg))
	if soon, _ := b.soon(); soon != 0 {
		t.Errorf("%d retry before the delay has passed", soon)
	}
	b.opens()
	for range 3 {
		b.Must(b.Tick(bg))
	}
	if soon, later := b.soon(); soon != 1 || later != 9 {
		t.Fatalf("%d retry, %d wait", soon, later)
	}
	b.Settle() // without result
	if soon, later := b.soon(); soon != 0 || later != 10 {
		t.Fatalf("%d retry, %d wait", soon, later)
	}
	unlock()
	b.opens()
	b.Must(b.Tick(bg))
	b.Settle()
	b.Must(b.Tick(bg))
	if soon, later := b.soon(); soon != 9 || later != 0 {
		t.Errorf("%d are due soon and %d later", soon, later)
	}
	b.Exec(`update enrollments set resume_at = now()  where status = 'active'`)
	b.Settle()
	b.WantCount(0, `select count(*) from enrollments where workspace_id = $1 and flow_id = $2 and status = 'active'`, b.Workspace,
		flow)
}

// The process that has seen a source fail is gone: the next one retries an enrollment that waits, and
// when the source answers, the others follow, also those at a branch, and the polls.
func TestASourceThatFailedBeforeARestart(t *testing.T) {
	const branch = `{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"b","nodes":{
		"b":{"type":"branch","cases":[{"sql":"select profile_key from people p ` +
		`where exists (select from customers c where c.id = p.profile_key)","next":"e"}],"else":"e"},"e":{"type":"exit"}}}`
	elsewhere := strings.NewReplacer(`"audience_id":"$audience",`, "", `"type":"branch",`, `"type":"branch","data_source_id":"$source",`).
		Replace(branch)
	for name, definition := range map[string]string{"profiles": asksProfiles, "a branch": branch, "a branch alone": elsewhere} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 10, func(c *flows.Config) { c.BackOff, c.MaxBackOff = time.Hour, time.Hour })
			b.Live(definition)
			polled := b.Live(`{"audience_id":"$audience","triggers":[{"type":"audience","every":"P1D"}],"recurrence":{"policy":"once"},
				"start":"e","nodes":{"e":{"type":"exit"}}}`)
			unlock := b.hangs()
			b.RecordOfAll(10, "go")
			b.Settle()
			b.Exec(`update flow_polls set failures = 3, next_at = now() + interval '10 minutes' where flow_id = $1`, polled)
			unlock()
			next, _ := b.Traced()
			b.Must(next.Tick(bg))
			if soon, later := b.soon(); soon != 1 || later != 9 {
				t.Fatalf("%d retry, %d wait", soon, later)
			}
			b.Must(flowstest.Second(next.RunOnce(bg)))
			b.WantCount(0, `select count(*) from flow_polls where workspace_id = $1 and next_at <= now()`, b.Workspace)
			b.Must(next.Tick(bg))
			if soon, later := b.soon(); soon != 9 || later != 0 {
				t.Errorf("%d are due soon and %d later", soon, later)
			}
			b.WantCount(1, `select count(*) from flow_polls where workspace_id = $1 and next_at <= now()`, b.Workspace)
			for range 3 { // it is a recovery once
				b.Exec(`update enrollments set resume_at = now() + interval '1 hour' where status = 'active'`)
				b.Exec(`update enrollments set resume_at = now() where id = (select id from enrollments where status = 'active' limit 1)`)
				b.Must(flowstest.Second(next.RunOnce(bg)))
				b.Must(next.Tick(bg))
			}
			if soon, _ := b.soon(); soon > 1 { // that one, if it found no worker
				t.Errorf("%d are retried once more", soon)
			}
		})
	}
}

// A branch whose query is slow blocks only its own enrollments, and releases them only
// after its own query was answered.
func TestABranchThatIsBack(t *testing.T) {
	b := setup(t, 4, func(c *flows.Config) { c.BackOff, c.MaxBackOff = time.Hour, time.Hour })
	b.Must(b.Tick(bg)) // the process begins before
	flow := b.Live(`{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"b","nodes":{
		"b":{"type":"branch","cases":[{"sql":"select profile_key from people p ` +
		`where exists (select from orders o where o.customer_id = p.profile_key)","next":"e"}],"else":"e"},
			"e":{"type":"exit"}}}`)
	tx, err := b.DB.Begin(bg)
	b.Must(err)
	_, err = tx.Exec(bg, `lock table orders in access exclusive mode`)
	b.Must(err)
	for _, profile := range []string{"c1", "c2"} {
		b.RecordEvent(profile, "go")
	}
	b.Settle()
	asks := b.Live(asksProfiles)
	b.RecordEvent("c3", "go") // the source answers
	b.Settle()
	b.Must(b.Tick(bg))
	if soon, later := b.soon(); soon != 0 || later != 3 {
		t.Errorf("the source answers others: %d are due soon, %d later", soon, later)
	}
	b.Must(tx.Rollback(bg))
	b.opens()
	b.Must(b.Tick(bg)) // one retries
	b.Settle()
	b.Must(b.Tick(bg))
	if soon, later := b.soon(); soon != 2 || later != 0 {
		t.Errorf("%d are due soon, %d later", soon, later)
	}
	_, _ = flow, asks
}

// The retries of one workspace last long, or fail: those of others are made meanwhile, and its own
// by the next call.
func TestRetriesOfOthersDoNotWait(t *testing.T) {
	b := setup(t, 4, func(c *flows.Config) { c.BackOff, c.MaxBackOff = time.Hour, time.Hour })
	first := b.Workspace
	defer func() { b.Workspace = first }()
	all := []uuid.UUID{first}
	for range 2 {
		all = append(all, pgtest.Workspace(t, b.Pool))
	}
	for _, b.Workspace = range all {
		if b.Workspace != first {
			b.Audience = b.NewAudience(b.NewSource(b.DSN), "select id::text as id, email from customers")
		}
		b.Live(asksProfiles)
	}
	polled := b.Live(`{"audience_id":"$audience","triggers":[{"type":"audience","every":"P1D"}],"recurrence":{"policy":"once"},"start":"e",
		"nodes":{"e":{"type":"exit"}}}`) // of the last
	b.Exec(`update flow_polls set failures = 3, next_at = now() + interval '10 minutes' where flow_id = $1`, polled)
	unlock := b.hangs()
	for _, b.Workspace = range all {
		b.RecordEvent("c1", "go")
	}
	b.Settle()
	unlock()
	for _, ws := range all { // the sources answer
		b.opens()
		b.Workspace = ws
		b.RecordEvent("c2", "go")
		b.Settle()
	}
	failing, cancel := context.WithCancel(bg)
	cancel()
	_ = b.Tick(failing)
	polls, err := b.Pool.Begin(bg)
	b.Must(err)
	_, err = polls.Exec(bg, `select from flow_polls where flow_id = $1 for update`, polled)
	b.Must(err)
	ended := make(chan error, 1)
	go func() { ended <- b.Tick(bg) }()
	pgtest.WaitForLocks(t, b.Pool, 1)
	for _, b.Workspace = range all[:2] {
		b.Eventually("the enrollment of another workspace is retried", func() bool { soon, _ := b.soon(); return soon == 1 })
	}
	b.Must(polls.Rollback(bg))
	b.Must(<-ended)
	b.Workspace = all[2]
	b.WantCount(1, `select count(*) from flow_polls where workspace_id = $1 and next_at <= now()`, b.Workspace)
	if soon, later := b.soon(); soon != 1 || later != 0 {
		t.Errorf("%d are due soon, %d later", soon, later)
	}
}

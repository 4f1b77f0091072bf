package execution_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/flows"
	"lemma/flows/enrollment"
	"lemma/flows/execution"
	"lemma/flows/flowstest"
)

const waitsForFive = `{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"first","nodes":{
	"first":{"type":"delay","for":"PT1H","next":"wait"},
	"wait":{"type":"wait_for_event","event":"bought","condition":"event.properties.n == 5.0","timeout":"P1D",
		"next":"bought","on_timeout":"late"},
	"bought":{"type":"exit"},"late":{"type":"exit"}}}`

// Waits that have missed many events, and those that are over, are searched for a limited time in each chunk,
// one after the other, and each finds the first event that it accepts.
func TestWaitsWithManyEvents(t *testing.T) {
	const events, accepted = 20, 15
	for name, before := range map[string]func(b *bundle){
		"missed":  func(b *bundle) { b.Pass(2 * time.Hour) },
		"is over": func(b *bundle) { b.Pass(2 * time.Hour); b.Settle(); b.Pass(25 * time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 3, func(c *flows.Config) { c.EventTime = 1 }) // one event in each chunk
			flow := b.Live(waitsForFive)
			b.RecordOfAll(3, "go")
			b.Settle()
			before(b)
			b.missed(events, accepted)
			b.inOneShard()
			ended := 0
			for pass := 1; ended < 3; pass++ {
				if pass > 3*(accepted+2) {
					t.Fatalf("%d of 3 have ended after %d chunks", ended, pass)
				}
				_, err := b.RunOnce(bg)
				b.Must(err)
				if pass == 1 {
					b.wantLeft("time", 3)
				}
				now := b.Count(`select count(*) from enrollments where workspace_id = $1 and flow_id = $2 and ended_at is not null`, b.Workspace, flow)
				if pass < accepted && now > 0 || now > ended+1 {
					t.Errorf("%d have ended after %d chunks, %d before", now, pass, ended)
				}
				ended = now
			}
			for i := 1; i <= 3; i++ {
				profile := fmt.Sprintf("c%d", i)
				e := b.Enrollment(flow, profile)
				found := fmt.Sprint(b.LastStepOn(e.ID, "wait").Data["event"])
				if want := fmt.Sprintf("source_id:%s-%d", profile, accepted); e.Node != "bought" || !strings.Contains(found, want) {
					t.Errorf("%s ended at %s with %s", profile, e.Node, found)
				}
			}
			b.Invariants()
		})
	}
}

// inOneShard puts all enrollments into one shard, which is due.
func (b *bundle) inOneShard() {
	b.T.Helper()
	b.Exec(`update enrollments set shard = 0 where workspace_id = $1`, b.Workspace)
	b.Exec(`update flow_shards set next_due_at = '-infinity' where workspace_id = $1`, b.Workspace)
}

// Events that a branch counts are counted for a limited time in each chunk.
func TestSumsOfManyEvents(t *testing.T) {
	b := setup(t, 3, func(c *flows.Config) { c.EventTime = 1 })
	terms := make([]string, 60)
	for i := range terms {
		terms[i] = fmt.Sprintf("events.e%d.times == 1", i)
	}
	flow := b.Live(`{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"ask","nodes":{
		"ask":{"type":"branch","cases":[{"if":"` + strings.Join(terms, " || ") + `","next":"one"}],"else":"none"},
		"one":{"type":"exit"},"none":{"type":"exit"}}}`)
	b.RecordOfAll(3, "go")
	b.inOneShard()
	b.RecordEvent("c2", "e59")
	for pass := 1; pass <= 3; pass++ {
		_, err := b.RunOnce(bg)
		b.Must(err)
		if n := b.Count(`select count(*) from enrollments where workspace_id = $1 and ended_at is not null`, b.Workspace); n != pass {
			t.Errorf("%d have ended after %d chunks", n, pass)
		}
	}
	for profile, node := range map[string]string{"c1": "none", "c2": "one", "c3": "none"} {
		if e := b.Enrollment(flow, profile); e.Node != node {
			t.Errorf("%s ended at %s", profile, e.Node)
		}
	}
	b.Invariants()
}

// A transaction that enters a wait whose time is over, and is repeated, accepts no event that was recorded
// after that time.
func TestAWaitIsEnteredOnceMore(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(strings.ReplaceAll(waitsForFive, "P1D", "PT1M"))
	b.RecordEvent("c1", "go")
	b.Settle()
	b.Pass(2 * time.Hour)
	b.inOneShard()
	all := b.dueOf(flow)
	b.Must(b.Execution.Evaluate(bg, all))
	for range 2 {
		b.enter(all)
		if all[0].MatchedEvent != nil || !all[0].Overdue {
			t.Errorf("matched by %v, overdue: %v", all[0].MatchedEvent, all[0].Overdue)
		}
		b.Exec(`insert into trigger_events (workspace_id, key, profile_key, name, properties, occurred_at, received_at)
			select $1, $2, 'c1', 'bought', '{"n":5}', now(), now() - interval '10 minutes'`, b.Workspace, uuid.New())
	}
}

// A transaction that found the event that ends a wait among many, and is repeated, finds it again.
func TestAnAwaitedEventIsFoundAgain(t *testing.T) {
	b := setup(t, 1, func(c *flows.Config) { c.EventTime = 1 })
	flow := b.Live(waitsForFive)
	b.RecordOfAll(1, "go")
	b.Settle()
	b.Pass(2 * time.Hour)
	b.inOneShard()
	b.missed(30, 15)
	var found []uuid.UUID
	for range 20 {
		all := b.dueOf(flow)
		b.Must(b.Execution.Evaluate(bg, all))
		b.enter(all)
		if one := all[0].MatchedEvent; one != nil {
			found = append(found, *one)
		}
	}
	if len(found) < 2 || slices.ContainsFunc(found, func(id uuid.UUID) bool { return id != found[0] }) {
		t.Errorf("%v", found)
	}
}

// Only the search that is in progress is remembered: those that end, of which there may be very many, displace none.
func TestSearchesInProgressAreRemembered(t *testing.T) {
	b := setup(t, 3, func(c *flows.Config) { c.EventTime = time.Minute })
	flow := b.Live(waitsForFive)
	b.RecordOfAll(3, "go")
	b.Settle()
	b.Pass(2 * time.Hour)
	b.inOneShard()
	b.missed(1500, 1400) // more than a page
	_, err := b.RunOnce(bg)
	b.Must(err)
	b.WantCount(3, `select count(*) from enrollments where workspace_id = $1 and matched_event is not null`, b.Workspace)
	if n := b.Execution.Searches(); n != 0 {
		t.Errorf("%d searches are remembered that have ended", n)
	}
	short := b.Another(func(c *flows.Config) { c.EventTime = 1 })
	b.Exec(`update enrollments set node = 'first', awaits = null, matched_event = null, first_due_at = null,
		resume_at = waiting_since where workspace_id = $1`, b.Workspace)
	all := b.dueOf(flow)
	b.Must(short.Execution.Evaluate(bg, all))
	b.Must(pgx.BeginFunc(bg, b.Pool, func(tx pgx.Tx) error {
		_, err := short.Execution.FindMissedEvents(bg, tx, all)
		return err
	}))
	if n := short.Execution.Searches(); n != 1 {
		t.Errorf("%d searches are in progress", n)
	}
}

// When the time is over in the middle of a page, waits whose events were all read have ended, and those of which none
// was read are not begun.
func TestSearchesThatTheTimeEnds(t *testing.T) {
	b := setup(t, 3, func(c *flows.Config) { c.EventTime = 1 })
	b.Live(waitsForFive)
	b.RecordOfAll(3, "go")
	b.Settle()
	b.Pass(2 * time.Hour)
	b.inOneShard()
	b.missed(1, 2)
	for entered := 1; entered <= 3; entered++ {
		_, err := b.RunOnce(bg)
		b.Must(err)
		b.WantCount(entered, `select count(*) from enrollments where workspace_id = $1 and node = 'wait'`, b.Workspace)
		if n := b.Execution.Searches(); n != 0 {
			t.Errorf("%d searches are remembered", n)
		}
	}
}

// wantLeft checks how many enrollments were left to the next chunk for a limit.
func (b *bundle) wantLeft(limit string, want float64) {
	b.T.Helper()
	if got := flowstest.Counted(b.Metrics.Left.WithLabelValues(limit)); got != want {
		b.T.Errorf("%v are left for %s, want %v", got, limit, want)
	}
}

// When the time is over among events of one time, all of them are searched: the next chunk begins after that time.
func TestEventsOfOneTimeAreSearchedTogether(t *testing.T) {
	b := setup(t, 2, func(c *flows.Config) { c.EventTime = 1 })
	b.Live(waitsForFive)
	b.RecordOfAll(2, "go")
	b.Settle()
	b.Pass(2 * time.Hour)
	b.inOneShard()
	b.missed(20, 21) // the order of events of one time is not known: so one profile's first is accepted, and one's last
	b.Exec(`update trigger_events set received_at = (select max(received_at) from trigger_events where name = 'bought'),
		properties = case when source_id in ('c1-1', 'c2-20') then '{"n":5}' else '{"n":0}' end where name = 'bought'`)
	b.Settle()
	b.WantCount(2, `select count(*) from enrollments where workspace_id = $1 and node = 'bought'`, b.Workspace)
}

// missed inserts events of all profiles since their enrollments became due, or began to wait. Those from one place
// on are accepted.
func (b *bundle) missed(n, accepted int) {
	b.T.Helper()
	b.Exec(`
		insert into trigger_events (workspace_id, key, source_id, profile_key, name, properties, occurred_at, received_at)
		select $1, gen_random_uuid(), e.profile_key || '-' || i, e.profile_key, 'bought',
			case when i >= $3 then '{"n":5}' else '{"n":0}' end, now(),
			case e.node when 'wait' then e.waiting_since else e.resume_at end + i * interval '1 millisecond'
		from enrollments e, generate_series(1, $2::int) i where e.workspace_id = $1`, b.Workspace, n, accepted)
}

// dueOf reads the enrollments of a flow that are due.
func (b *bundle) dueOf(flow uuid.UUID) (all []*execution.Execution) {
	b.T.Helper()
	shard := enrollment.Shard{Workspace: b.Workspace, Flow: flow}
	due, err := execution.ReadDue(bg, b.Pool, shard, time.Time{}, time.Now().Add(time.Minute), 10)
	b.Must(err)
	route, err := b.Execution.Route(bg, b.Workspace, flow, 1)
	b.Must(err)
	for _, d := range due {
		all = append(all, d.Execution(route, 0))
	}
	return all
}

// enter finds missed events in a transaction.
func (b *bundle) enter(all []*execution.Execution) {
	b.T.Helper()
	b.Must(pgx.BeginFunc(bg, b.Pool, func(tx pgx.Tx) error {
		_, err := b.Execution.FindMissedEvents(bg, tx, all)
		return err
	}))
}

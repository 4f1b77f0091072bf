package execution_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/flows/execution"
	"lemma/flows/flowstest"
	"lemma/pgtest"
)

// Branches see how many events there are, and the times and properties of those that were
// recorded first and last.
func TestPastEvents(t *testing.T) {
	const day = 24 * time.Hour
	today := time.Now().UTC().Truncate(day)
	bought := func(b *bundle, status string, occurred time.Time) {
		b.RecordEvent("c1", "bought", flowstest.At(occurred), flowstest.Properties(`{"status":"`+status+`"}`))
	}
	// recorded inserts events with these places behind the time of the enrollment.
	recorded := func(b *bundle, enrollment uuid.UUID, from, to int) {
		b.Exec(`
			insert into trigger_events (workspace_id, key, profile_key, name, properties, occurred_at, received_at)
			select $1, gen_random_uuid(), 'c1', 'bought', case i when $4 then '{"status":"paid"}' else '{"status":"open"}' end,
				$5::timestamptz - case i when $3 then interval '1 day' when $4 then interval '0' else interval '2 days' end,
				e.enrolled_at + i * interval '1 microsecond'
			from enrollments e, generate_series($3::int, $4::int) i where e.workspace_id = $1 and e.id = $2`,
			b.Workspace, enrollment, from, to, today)
	}
	for name, c := range map[string]struct {
		record      func(b *bundle, enrollment uuid.UUID)
		times       int
		first, last any    // occurred_at
		status      string // of the last
	}{
		"a late event is the last": {func(b *bundle, _ uuid.UUID) {
			bought(b, "created", today.Add(-time.Hour))
			bought(b, "paid", today)
			bought(b, "open", today.Add(-2*time.Hour))
		}, 3, today.Add(-time.Hour), today.Add(-2 * time.Hour), "open"},
		"more events than are counted": {func(b *bundle, enrollment uuid.UUID) { recorded(b, enrollment, 1, execution.MaxTimes+1) },
			execution.MaxTimes, today.Add(-day), today, "paid"},
		"before and since the enrollment": {func(b *bundle, enrollment uuid.UUID) { recorded(b, enrollment, -2, 1) },
			1, today, today, "paid"},
		"before and not since the enrollment": {func(b *bundle, enrollment uuid.UUID) { recorded(b, enrollment, -2, 0) },
			0, nil, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 1)
			flow := b.Live(`{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"wait","nodes":{
				"wait":{"type":"delay","for":"PT1H","next":"ask"},
				"ask":{"type":"branch","cases":[{"if":"events.bought.last.?status.orValue('') == 'paid'","next":"paid"}],"else":"other"},
				"paid":{"type":"exit"},"other":{"type":"exit"}}}`)
			b.RecordEvent("c1", "go")
			b.Settle()
			id := b.Enrollment(flow, "c1").ID
			c.record(b, id)
			b.Pass(2 * time.Hour)
			b.Settle()
			last, node := map[string]string{}, "other"
			if c.status != "" {
				last["status"] = c.status
			}
			if c.status == "paid" {
				node = "paid"
			}
			got, err := json.Marshal(b.LastStepOn(id, "ask").Data["events"])
			b.Must(err)
			want, err := json.Marshal(map[string]any{"bought": map[string]any{"times": c.times, "first_at": c.first, "last_at": c.last,
				"last": last}})
			b.Must(err)
			if string(got) != string(want) {
				t.Errorf("got  %s\nwant %s", got, want)
			}
			if e := b.Enrollment(flow, "c1"); e.Node != node {
				t.Errorf("it ended at %s", e.Node)
			}
		})
	}
}

// Also in a database whose events were of one profile when it was analyzed, they are found
// by the profile, and not by the time among those of all.
func TestPastEventsAreFoundByTheirProfile(t *testing.T) {
	b := setup(t, 1)
	hot := &pgtest.Statements{}
	deps := b.Deps
	deps.Pool = hot.Trace(t, b.Pool)
	b.Process = flowstest.NewProcess(deps, b.Config)
	b.Live(`{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"ask","nodes":{
		"ask":{"type":"branch","cases":[{"if":"events.bought.times == 1","next":"end"}],"else":"end"},"end":{"type":"exit"}}}`)
	b.RecordEvent("c1", "go")
	b.Settle()
	other := pgtest.DB(t)
	pgtest.Exec(t, other, `insert into trigger_events (workspace_id, key, profile_key, name, occurred_at, received_at)
		select $1::uuid, gen_random_uuid(), 'c1', 'bought', now(), now() + i * interval '1 second' from generate_series(1, 30000) i`,
		lemma.NewID())
	pgtest.Exec(t, other, `vacuum analyze trigger_events`)
	scans := 0
	for _, s := range hot.Scans(t, other) {
		if s.Table != "trigger_events" || !strings.HasSuffix(s.Caller, "sumUp") {
			continue
		}
		if scans++; !s.By("profile_key") {
			t.Errorf("%s by %s with %q\n%s", s.Type, s.Index, s.Cond, s.Plan)
		}
	}
	if scans != 3 {
		t.Errorf("%d scans", scans)
	}
}

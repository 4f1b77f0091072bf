package query_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lemma"
	"lemma/flows/enrollment"
	"lemma/flows/execution"
	"lemma/flows/flowstest"
	"lemma/flows/intake"
	"lemma/flows/query"
	"lemma/page"
	"lemma/pgtest"
)

// Refusals are listed newest first, page by page, each once: also those of equal times and
// several reasons.
func TestRefusalsAreListed(t *testing.T) {
	b := setup(t, 0)
	ctx := context.Background()
	flow := b.NewDraft(flowstest.Minimal).ID
	other := b.NewDraft(flowstest.Minimal).ID
	b.Refuse(other, "c1", enrollment.Filtered, 0)
	for i := range 9 {
		b.Refuse(flow, fmt.Sprintf("c%d", i%3), []string{enrollment.Filtered, enrollment.IsPaused, enrollment.NoProfile}[i%3],
			time.Duration(i/4)*time.Minute)
	}
	read := func(profile, reason string) (all []string) {
		found := pgtest.Pages(t, 2, func(cursor string) ([]query.Refusal, string, error) {
			return b.Refusals(ctx, b.Workspace, flow, profile, reason, page.Query{Limit: 2, Cursor: cursor})
		})
		for i, r := range found {
			if i > 0 && r.At.After(found[i-1].At) {
				t.Fatal("not newest first")
			}
			all = append(all, r.Key().String())
		}
		return all
	}
	for _, c := range []struct {
		profile, reason string
		want            int
	}{{"", "", 9}, {"c1", "", 3}, {"", enrollment.Filtered, 3}, {"c1", enrollment.IsPaused, 3}, {"c1", enrollment.Filtered, 0}, {"",
		"unknown_reason", 0}, {"a\x00b", "", 0}} {
		all := read(c.profile, c.reason)
		seen := map[string]bool{}
		for _, key := range all {
			seen[key] = true
		}
		if len(all) != c.want || len(seen) != c.want {
			t.Errorf("%q %q: %d rows, %d of them different, want %d", c.profile, c.reason, len(all), len(seen), c.want)
		}
	}
	b.Wants(lemma.NotFound, flowstest.ThirdOf(b.Refusals(ctx, b.Workspace, lemma.NewID(), "", "", page.Query{Limit: 2})))
	for _, cursor := range []string{"x", "abc.def", "zzzzzzzzzzzzz.00000000-0000-0000-0000-000000000000",
		"-5.00000000-0000-0000-0000-000000000000", "1y.{00000000-0000-0000-0000-000000000000}"} {
		if e := b.Wants(lemma.Invalid, flowstest.ThirdOf(b.Refusals(ctx, b.Workspace, flow, "", "",
			page.Query{Limit: 2, Cursor: cursor}))); flowstest.Pointers(e) != "?cursor invalid_cursor" {
			t.Errorf("%q: %s", cursor, flowstest.Pointers(e))
		}
	}
	counts, err := b.CountRefusals(ctx, b.Workspace, flow)
	b.Must(err)
	if d := cmp.Diff(map[string]int64{enrollment.Filtered: 3, enrollment.IsPaused: 3, enrollment.NoProfile: 3}, counts); d != "" {
		t.Fatal(d)
	}
}

// Reports on profiles and flows are found by an index, however large the tables are.
func TestReportsAreFoundByIndex(t *testing.T) {
	b := setup(t, 0)
	flow := b.NewDraft(flowstest.Minimal).ID
	b.Exec(`insert into enrollments (workspace_id, id, flow_id, version, shard, uniqueness_key, overlap_key, profile_key, status,
		node, resume_at, source, ended_at)
		select $1, gen_random_uuid(), $2, 1, 0, gen_random_uuid(), $3, 'p' || i, case when i % 2 = 0 then 'active' else 'exited' end, 'n',
			case when i % 2 = 0 then now() end, 'event', case when i % 2 = 1 then now() end from generate_series(1, 20000) i`, b.Workspace, flow,
		lemma.NewID())
	b.CountEnded(flow)
	b.Exec(`insert into refusals (workspace_id, flow_id, key, profile_key, reason, source, at)
		select $1, $2, gen_random_uuid(), 'p' || i, 'filtered', 'event', now() - i * interval '1 second' from generate_series(1, 20000) i`,
		b.Workspace, flow)
	b.Exec(`insert into trigger_events (workspace_id, key, profile_key, name, occurred_at)
		select $1, gen_random_uuid(), 'p' || i, 'go', now() from generate_series(1, 20000) i`, b.Workspace)
	b.Exec(`analyze`)
	for name, sql := range map[string]string{
		"enrollments of a profile": query.SelectEnrollment + ` where workspace_id = $1 and flow_id = $2
			and (profile_key = 'p77' and status = 'active' or profile_key = 'p77' and status <> 'active') order by id desc limit 20`,
		"refusals of a reason": `select key from refusals where workspace_id = $1 and flow_id = $2 and reason = 'filtered'
			order by at desc, key desc limit 20`,
	} {
		rows, err := b.Pool.Query(context.Background(), `explain (analyze, buffers, timing off, summary off) `+sql, b.Workspace, flow)
		b.Must(err)
		var plan []string
		for rows.Next() {
			var line string
			b.Must(rows.Scan(&line))
			plan = append(plan, line)
		}
		b.Must(rows.Err())
		if text := strings.Join(plan, "\n"); strings.Contains(text, "Seq Scan") || strings.Contains(text, "Rows Removed by Filter") {
			t.Errorf("%s:\n%s", name, text)
		}
	}
}

// A refusal names its event, also if the profile was checked first.
func TestARefusalNamesItsEvent(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(strings.NewReplacer(`"triggers"`, `"audience_id":"$audience","triggers"`, `"event":"go"`,
		`"event":"go","condition":"profile.country == 'DE'"`).Replace(flowstest.HourAfter("go")))
	for profile, id := range map[string]string{"c1": "", "missing": "e1"} {
		r := b.RecordEvent(profile, "go", flowstest.WithID(id), flowstest.At(noon))
		for range execution.MaxLookups {
			b.Exec(`update enrollments set resume_at = now() where status = 'active'`)
			b.Settle()
		}
		found, _, err := b.Refusals(bg, b.Workspace, flow, profile, "", page.Query{Limit: 5})
		b.Must(err)
		if len(found) != 1 || found[0].EventKey == nil || *found[0].EventKey != r.Key {
			t.Errorf("%s: %+v, not %s", profile, found, r.Key)
		}
	}
	b.Must(flowstest.Second(b.Enroll(bg, b.Workspace, flow, intake.Enrolling{ProfileKey: "direct", ID: "e1"}, false)))
	b.Settle()
	if found, _, err := b.Refusals(bg, b.Workspace, flow, "direct", "",
		page.Query{Limit: 5}); err != nil || len(found) != 1 || found[0].EventKey != nil {
		t.Errorf("%+v, %v", found, err)
	}
}

// A key with white space around it names no profile, in any input.
func TestKeysWithSpaceAroundThem(t *testing.T) {
	b := setup(t, 0)
	b.ExecDB(`insert into customers (id) values ('ok'), (' c1'), ('c2 '), ('   '), (E'c3\t')`)
	flow := b.Live(`{"audience_id":"$audience","triggers":[{"type":"audience","every":"PT1H"},{"type":"event","event":"go"}],
		"recurrence":{"policy":"once"},"start":"end","nodes":{"end":{"type":"exit"}}}`)
	if n := b.PollFlow(flow); n != 1 {
		t.Errorf("%d are enrolled", n)
	}
	if p, err := b.ReadPoll(bg, b.Workspace, flow); err != nil || p.Refused[enrollment.InvalidKey] != 4 {
		t.Errorf("%+v, %v", p, err)
	}
	for _, key := range []string{" c1", "c1 ", " ", "\tc1", "c1\u00a0"} {
		if e := b.Wants(lemma.Invalid, flowstest.Second(b.Record(bg, b.Workspace,
			intake.Event{ProfileKey: key, Name: "go"}))); flowstest.Pointers(e) != "/profile_key invalid_key" {
			t.Errorf("%q: %s", key, flowstest.Pointers(e))
		}
		b.Wants(lemma.Invalid, flowstest.Second(b.Enroll(bg, b.Workspace, flow, intake.Enrolling{ProfileKey: key}, false)))
	}
	if r := b.RecordEvent("c 1", "go"); len(r.Results) != 1 {
		t.Errorf("%+v", r)
	}
}

// An unknown zone of a profile is recorded in its history, with the zone that is used
// instead; a missing one is not.
func TestAnUnknownZoneIsAnError(t *testing.T) {
	b := setup(t, 3)
	b.ExecDB(`update customers set zone = 'Mars/Olympus' where id = 'c1'`)
	b.ExecDB(`update customers set zone = null where id = 'c3'`)
	flow := b.Live(`{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"nine",
		"nodes":{
		"nine":{"type":"wait_until","time":"09:00","zone":"Europe/Kyiv","zone_column":"zone","next":"past"},
		"past":{"type":"wait_until","date_column":"renews_on","zone_column":"zone","next":"end"},"end":{"type":"exit"}}}`)
	b.ExecDB(`update customers set renews_on = '2020-01-01'`)
	for profile, want := range map[string]string{"c1": "enrolled@ checked@ zone_unknown@nine resumed@nine zone_unknown@past resumed@past " +
		"completed@end", "c2": "enrolled@ checked@ resumed@nine resumed@past completed@end",
		"c3": "enrolled@ checked@ resumed@nine resumed@past completed@end"} {
		b.RecordEvent(profile, "go")
		b.Settle()
		e := b.Enrollment(flow, profile)
		if e.Status != enrollment.Waiting || e.Node != "nine" {
			t.Errorf("%s: %+v", profile, e)
		}
		b.Wake(e.ID)
		b.Settle()
		if got := b.Trace(e.ID); got != want {
			t.Errorf("%s: %s", profile, got)
		}
	}
	_, steps, _, err := b.Steps(bg, b.Workspace, b.Enrollment(flow, "c1").ID, -1)
	b.Must(err)
	if got, _ := json.Marshal([]any{steps[2].Data,
		steps[4].Data}); string(got) != `[{"column":"zone","zone":"Europe/Kyiv"},{"column":"zone","zone":"UTC"}]` {
		t.Errorf("%s", got)
	}
	b.Invariants()
}

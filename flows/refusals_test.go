package flows

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lemma"
)

// refuse writes a refusal, minutes ago.
func (b *bundle) refuse(flow any, who, reason string, ago time.Duration) {
	b.t.Helper()
	b.run(b.pool, `insert into refusals (workspace_id, flow_id, key, profile_key, reason, source, at) values ($1, $2, $3, $4, $5, 'event', date_trunc('minute', now()) - $6::interval)`,
		b.ws, flow, lemma.NewID(), who, reason, ago)
}

// Refusals are listed newest first, page by page, each once: also those that
// have one time, of several reasons.
func TestRefusalsAreListed(t *testing.T) {
	b := setup(t, 0)
	ctx := context.Background()
	flow := b.draft(minimal).ID
	other := b.draft(minimal).ID
	b.refuse(other, "c1", Filtered, 0)
	for i := range 9 {
		b.refuse(flow, fmt.Sprintf("c%d", i%3), []string{Filtered, IsPaused, NoProfile}[i%3], time.Duration(i/4)*time.Minute)
	}
	read := func(who, reason string) (all []string) {
		cursor, pages := "", 0
		for {
			page, next, err := b.Refusals(ctx, b.ws, flow, who, reason, lemma.Page{Limit: 2, Cursor: cursor})
			b.must(err)
			for i, r := range page {
				if i > 0 && r.At.After(page[i-1].At) {
					t.Fatal("not newest first")
				}
				all = append(all, r.key.String())
			}
			if pages++; next == "" || pages > 20 {
				return all
			}
			cursor = next
		}
	}
	for _, c := range []struct {
		who, reason string
		want        int
	}{{"", "", 9}, {"c1", "", 3}, {"", Filtered, 3}, {"c1", IsPaused, 3}, {"c1", Filtered, 0}, {"", "never_heard_of", 0}, {"a\x00b", "", 0}} {
		all := read(c.who, c.reason)
		seen := map[string]bool{}
		for _, key := range all {
			seen[key] = true
		}
		if len(all) != c.want || len(seen) != c.want {
			t.Errorf("%q %q: %d rows, %d of them different, want %d", c.who, c.reason, len(all), len(seen), c.want)
		}
	}
	b.wants(lemma.NotFound, errOf(b.Refusals(ctx, b.ws, lemma.NewID(), "", "", lemma.Page{Limit: 2})))
	for _, cursor := range []string{"x", "abc.def", "zzzzzzzzzzzzz.00000000-0000-0000-0000-000000000000", "-5.00000000-0000-0000-0000-000000000000", "1y.{00000000-0000-0000-0000-000000000000}"} {
		if e := b.wants(lemma.Invalid, errOf(b.Refusals(ctx, b.ws, flow, "", "", lemma.Page{Limit: 2, Cursor: cursor}))); pointers(e) != "?cursor invalid_cursor" {
			t.Errorf("%q: %s", cursor, pointers(e))
		}
	}
	counts, err := b.countRefusals(ctx, b.ws, flow)
	b.must(err)
	if d := cmp.Diff(map[string]int64{Filtered: 3, IsPaused: 3, NoProfile: 3}, counts); d != "" {
		t.Fatal(d)
	}
}

func errOf[T any](_ T, _ string, err error) error { return err }

// What is read of people or of a flow is found by an index, however much there is.
func TestSightsAreFoundByIndex(t *testing.T) {
	b := setup(t, 0)
	flow := b.draft(minimal).ID
	b.run(b.pool, `insert into enrollments (workspace_id, id, flow_id, version, turn, uniqueness_key, slot, profile_key, status, node, resume_at, source, ended_at)
		select $1, gen_random_uuid(), $2, 1, 0, gen_random_uuid(), $3, 'p' || i, case when i % 2 = 0 then 'active' else 'exited' end, 'n',
			case when i % 2 = 0 then now() end, 'event', case when i % 2 = 1 then now() end from generate_series(1, 20000) i`, b.ws, flow, lemma.NewID())
	b.run(b.pool, `insert into refusals (workspace_id, flow_id, key, profile_key, reason, source, at)
		select $1, $2, gen_random_uuid(), 'p' || i, 'filtered', 'event', now() - i * interval '1 second' from generate_series(1, 20000) i`, b.ws, flow)
	b.run(b.pool, `analyze`)
	for name, sql := range map[string]string{
		"her enrollments": selectEnrollment + ` where workspace_id = $1 and flow_id = $2
			and (profile_key = 'p77' and status = 'active' or profile_key = 'p77' and status <> 'active') order by id desc limit 20`,
		"refusals of a reason": `select key from refusals where workspace_id = $1 and flow_id = $2 and reason = 'filtered' order by at desc, key desc limit 20`,
	} {
		rows, err := b.pool.Query(context.Background(), `explain (analyze, buffers, timing off, summary off) `+sql, b.ws, flow)
		b.must(err)
		var plan []string
		for rows.Next() {
			var line string
			b.must(rows.Scan(&line))
			plan = append(plan, line)
		}
		b.must(rows.Err())
		if text := strings.Join(plan, "\n"); strings.Contains(text, "Seq Scan") || strings.Contains(text, "Rows Removed by Filter") {
			t.Errorf("%s:\n%s", name, text)
		}
	}
}

// A refusal names the event that asked, also when the profile was looked at first.
func TestARefusalNamesItsEvent(t *testing.T) {
	b := setup(t, 1)
	flow := b.live(strings.NewReplacer(`"triggers"`, `"audience_id":"$audience","triggers"`, `"event":"go"`, `"event":"go","condition":"profile.country == 'DE'"`).Replace(hourAfter("go")))
	for profile, id := range map[string]string{"c1": "", "nobody": "e1"} {
		r := b.tell(profile, "go", withID(id), at(noon))
		for range looks {
			b.run(b.pool, `update enrollments set resume_at = now() where status = 'active'`)
			b.settleDown()
		}
		found, _, err := b.Refusals(bg, b.ws, flow, profile, "", lemma.Page{Limit: 5})
		b.must(err)
		if len(found) != 1 || found[0].EventKey == nil || *found[0].EventKey != r.Key {
			t.Errorf("%s: %+v, not %s", profile, found, r.Key)
		}
	}
	b.must(second(b.Enroll(bg, b.ws, flow, Enrolling{ProfileKey: "direct", ID: "e1"}, false)))
	b.settleDown()
	if found, _, err := b.Refusals(bg, b.ws, flow, "direct", "", lemma.Page{Limit: 5}); err != nil || len(found) != 1 || found[0].EventKey != nil {
		t.Errorf("%+v, %v", found, err)
	}
}

// A key with white space around it is nobody's, from wherever it comes.
func TestKeysWithSpaceAroundThem(t *testing.T) {
	b := setup(t, 0)
	b.run(b.shop, `insert into customers (id) values ('ok'), (' c1'), ('c2 '), ('   '), (E'c3\t')`)
	flow := b.live(`{"audience_id":"$audience","triggers":[{"type":"audience","every":"PT1H"},{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"end","nodes":{"end":{"type":"exit"}}}`)
	if n := b.lookOnce(flow); n != 1 {
		t.Errorf("%d are enrolled", n)
	}
	if p, err := b.readPoll(bg, b.ws, flow); err != nil || p.Refused[InvalidKey] != 4 {
		t.Errorf("%+v, %v", p, err)
	}
	for _, key := range []string{" c1", "c1 ", " ", "\tc1", "c1\u00a0"} {
		if e := b.wants(lemma.Invalid, second(b.Record(bg, b.ws, Event{ProfileKey: key, Name: "go"}))); pointers(e) != "/profile_key invalid_key" {
			t.Errorf("%q: %s", key, pointers(e))
		}
		b.wants(lemma.Invalid, second(b.Enroll(bg, b.ws, flow, Enrolling{ProfileKey: key}, false)))
	}
	if r := b.tell("c 1", "go"); len(r.Results) != 1 {
		t.Errorf("%+v", r)
	}
}

// That the zone of a profile is none is said in its history, with the one that
// is used instead; that it has none is not.
func TestAnUnknownZoneIsSaid(t *testing.T) {
	b := setup(t, 3)
	b.run(b.shop, `update customers set zone = 'Mars/Olympus' where id = 'c1'`)
	b.run(b.shop, `update customers set zone = null where id = 'c3'`)
	flow := b.live(`{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"nine","nodes":{
		"nine":{"type":"wait_until","time":"09:00","zone":"Europe/Kyiv","zone_column":"zone","next":"past"},
		"past":{"type":"wait_until","date_column":"renews_on","zone_column":"zone","next":"end"},"end":{"type":"exit"}}}`)
	b.run(b.shop, `update customers set renews_on = '2020-01-01'`)
	for profile, want := range map[string]string{"c1": "enrolled@ checked@ zone_unknown@nine resumed@nine zone_unknown@past resumed@past completed@end", "c2": "enrolled@ checked@ resumed@nine resumed@past completed@end", "c3": "enrolled@ checked@ resumed@nine resumed@past completed@end"} {
		b.tell(profile, "go")
		b.settleDown()
		e := b.enrollment(flow, profile)
		if e.Status != statusWaiting || e.Node != "nine" {
			t.Errorf("%s: %+v", profile, e)
		}
		b.wake(e.ID)
		b.settleDown()
		if got := b.story(e.ID); got != want {
			t.Errorf("%s: %s", profile, got)
		}
	}
	_, steps, err := b.Steps(bg, b.ws, b.enrollment(flow, "c1").ID)
	b.must(err)
	if got, _ := json.Marshal([]any{steps[2].Data, steps[4].Data}); string(got) != `[{"column":"zone","zone":"Europe/Kyiv"},{"column":"zone","zone":"UTC"}]` {
		t.Errorf("%s", got)
	}
	b.invariants()
}

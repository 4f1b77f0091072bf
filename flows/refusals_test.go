package flows

import (
	"context"
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

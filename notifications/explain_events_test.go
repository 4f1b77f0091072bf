package notifications

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"lemma"
	"lemma/pgtest"
)

// An explanation reads a bounded number of the events of a notification, by the index.
func TestAnExplanationReadsFewEvents(t *testing.T) {
	t.Parallel()
	s := pgtest.NewShop(t)
	origin, key, batch := lemma.NewID(), lemma.NewID(), lemma.NewID()
	s.Exec(`insert into notifications (workspace_id, origin_id, key, batch_id, ordinal, profile_key, address)
		values ($1, $2, $3, $4, 1, 'c', '')`,
		s.Workspace, origin, key, batch)
	s.Exec(`insert into provider_events (workspace_id, id, provider_id, source, source_event_id, origin_id, batch_id, ordinal, attempt, kind,
			occurred_at)
		select $1, gen_random_uuid(), $2, 'webhook', n::text, $2, $3, n % 3, nullif(n % 2, 0),
			case n % 7 when 0 then 'deferred' else 'rejected' end,
			now() + n * interval '1 s' from generate_series(1, 100000) n`, s.Workspace, origin, batch)
	for _, analyzed := range []string{`select 1`, `analyze notifications, provider_events`} {
		s.Exec(analyzed)
		for _, c := range []struct {
			sql         string
			limit, most int
		}{{firstEvents, mostEvents, 9 * mostEvents}, {countEvents, mostCounted + 1, 3 * mostCounted}} {
			plan := strings.Join(pgtest.Column[string](t, s.Pool, `explain (analyze, costs off, timing off, summary off) `+c.sql,
				s.Workspace, origin, key, c.limit), "\n")
			for _, read := range regexp.MustCompile(`rows=(\d+)|Filter: (\d+)`).FindAllStringSubmatch(plan, -1) {
				if n, _ := strconv.Atoi(read[1] + read[2]); n > c.most {
					t.Fatalf("%s: %d rows:\n%s", analyzed, n, plan)
				}
			}
		}
	}
}

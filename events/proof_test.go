package events

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"lemma"
	"lemma/pgtest"
)

// The evidence of a row with many events is read by the index, one event of each kind and
// attempt.
func TestProofsReadFewEvents(t *testing.T) {
	t.Parallel()
	s := pgtest.NewShop(t)
	origin, batch := lemma.NewID(), lemma.NewID()
	s.Exec(`insert into provider_events (workspace_id, id, provider_id, source, source_event_id, origin_id, batch_id, ordinal, attempt, kind,
			occurred_at)
		select $1, gen_random_uuid(), $2, 'webhook', 'unknown', $2, $3, n % 3, nullif(n % 2, 0),
			case n % 7 when 0 then 'deferred' else 'rejected' end,
			now() + n * interval '1 s' from generate_series(1, 20000) n`, s.Workspace, origin, batch)
	s.Exec(`analyze provider_events`)
	plan := strings.Join(pgtest.Column[string](t, s.Pool, `explain (analyze, costs off, timing off, summary off) `+proofs,
		s.Workspace, batch, []int16{0, 1, 2, 3}, origin), "\n")
	for _, read := range regexp.MustCompile(`rows=(\d+)|Filter: (\d+)`).FindAllStringSubmatch(plan, -1) {
		if n, _ := strconv.Atoi(read[1] + read[2]); n > 100 {
			t.Fatalf("%d rows:\n%s", n, plan)
		}
	}
}

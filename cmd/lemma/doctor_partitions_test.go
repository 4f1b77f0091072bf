package main

import (
	"strings"
	"testing"
	"time"

	"lemma/migrations"
	"lemma/pgtest"
)

// Doctor shows partitions, and what keeps one that is older than its retention.
func TestDoctorShowsPartitions(t *testing.T) {
	t.Parallel()
	s := pgtest.NewShop(t)
	s.Must(migrations.Partitions(t.Context(), s.Pool, time.Date(2019, 5, 1, 0, 0, 0, 0, time.UTC)))
	s.Exec(`insert into batches (workspace_id, origin_id, id, root_id, provider_id, content_id, size, max_attempts)
		select $1, i, i, i, i, i, 1, 1 from (values ('016a7151-1000-7000-8000-000000000000'::uuid)) v (i)`, s.Workspace)
	s.Exec(`alter table attempts detach partition attempts_2019_06`)
	s.Exec(`do $$ begin execute 'drop table deliveries' || to_char(now() + interval '1 month', '_YYYY_MM'); end $$`)
	out := strings.Join(strings.Fields(mustRun(t, on(s.Pool), "doctor", "--allow-no-fsync")), " ")
	for _, want := range []string{
		"warn partitions of provider_events 2019-05: batches of the month have not ended for long enough",
		"warn partitions of batch_log 2019-05: batches of the month have not ended",
		"warn partitions of batch_log 2019-06: the next run of a worker drops it",
		"warn partitions of attempts detached and not dropped yet: attempts_2019_06",
		"warn partitions of deliveries the coming month has none",
		"since 2019-05, 0 MiB, kept for 90 days after the month", "since 2019-05, 0 MiB, kept for ever",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("doctor does not print %q: %s", want, out)
		}
	}
	if strings.Contains(out, "partitions of notifications 2019") || strings.Contains(out, "RED") {
		t.Errorf("doctor prints too much: %s", out)
	}
}

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

// Doctor compares the clocks.
func TestDoctorShowsAWrongClock(t *testing.T) {
	t.Parallel()
	s := pgtest.NewShop(t)
	for _, c := range []struct {
		ahead time.Duration
		want  string
	}{{0, "ok clock that of this machine is that of the database"}, {48 * time.Hour, "ahead of that of the database: synchronize both"},
		{-48 * time.Hour, "behind that of the database: synchronize both"}} {
		if c.ahead != 0 {
			pgtest.SetClock(t, s.Pool, time.Now().Add(-c.ahead))
		}
		out := strings.Join(strings.Fields(mustRun(t, on(s.Pool), "doctor", "--allow-no-fsync")), " ")
		if !strings.Contains(out, c.want) {
			t.Errorf("%s ahead: doctor does not print %q: %s", c.ahead, c.want, out)
		}
	}
}

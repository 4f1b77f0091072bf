package main

import (
	"strings"
	"testing"
	"time"

	"lemma/migrations"
	"lemma/pgtest"
	"lemma/server"
)

// Doctor warns when partitions need more locks than Postgres has.
func TestDoctorComparesLocksWithPartitions(t *testing.T) {
	t.Parallel()
	s := pgtest.NewShop(t)
	doctor := func() string {
		return strings.Join(strings.Fields(mustRun(t, on(s.Pool), "doctor", "--allow-no-fsync")), " ")
	}
	if out := doctor(); !strings.Contains(out, "ok locks max_locks_per_transaction is 64, and the partitions of today need 15") {
		t.Errorf("a new database: %s", out)
	}
	for year := range 5 {
		s.Must(migrations.Partitions(t.Context(), s.Pool, time.Date(2015+year, 1, 1, 0, 0, 0, 0, time.UTC)))
	}
	if out := doctor(); !strings.Contains(out, "warn locks max_locks_per_transaction is 64, and the partitions of today need 75: "+
		"set it to 256 and restart Postgres, or keep fewer months") {
		t.Errorf("a database with 25 months: %s", out)
	}
}

func TestDoctorShowsTheCollation(t *testing.T) {
	t.Parallel()
	s := pgtest.NewShop(t)
	out := strings.Join(strings.Fields(mustRun(t, on(s.Pool), "doctor", "--allow-no-fsync")), " ")
	if !strings.Contains(out, "ok collation the order of texts is that of the indexes") {
		t.Errorf("doctor prints %s", out)
	}
	if f := describedCollation(server.Collation{Stored: "2.28", Now: "2.36"}); f.state != "warn" || !strings.Contains(f.text, "2.28 to 2.36") {
		t.Errorf("a changed one: %+v", f)
	}
}

func TestNeededLocks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ objects, connections, prepared, want int }{
		{110, 100, 0, 14}, {1430, 100, 0, 179}, {1430, 100, 100, 90}, {2750, 500, 0, 344}, {0, 100, 0, 0},
	} {
		if got := neededLocks(c.objects, c.connections, c.prepared); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

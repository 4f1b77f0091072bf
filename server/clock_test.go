package server

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"lemma/clock"
	"lemma/pgtest"
)

// A process whose clock is not that of the database warns when it starts.
func TestAStartWarnsOfAWrongClock(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	for _, ahead := range []time.Duration{0, 2 * time.Hour, -2 * time.Hour} {
		if ahead != 0 {
			pgtest.SetClock(t, pool, time.Now().Add(-ahead))
		}
		found, err := Skew(t.Context(), pool)
		must(t, err)
		if (found - ahead).Abs() > time.Minute {
			t.Errorf("%s ahead instead of %s", found, ahead)
		}
		var log bytes.Buffer
		(&Server{Pool: pool, log: slog.New(slog.NewTextHandler(&log, nil))}).WarnOfSkew(t.Context())
		if strings.Contains(log.String(), "clocks") != (ahead != 0) {
			t.Errorf("%s ahead: %q", ahead, log.String())
		}
	}
}

// A process repairs what was written while the clock of the database was ahead, and River
// elects another leader when the one of that time was killed.
func TestTimesThatAreTooFarAheadAreRepaired(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	var log bytes.Buffer
	s := newServer(t, pool, Config{})
	s.log = slog.New(slog.NewTextHandler(&log, nil))
	for _, c := range []struct {
		ahead string
		want  int
	}{{"6 minutes", 0}, {"1 day", 1}} {
		pgtest.Exec(t, pool, `delete from river_leader`)
		pgtest.Exec(t, pool, `insert into river_leader (leader_id, elected_at, expires_at) values ('x', now(), now() + $1::interval)`, c.ahead)
		log.Reset()
		must(t, s.RepairTimes(t.Context()))
		if n := strings.Count(log.String(), "times that are too far ahead are repaired"); n != c.want {
			t.Errorf("%s ahead: %q", c.ahead, log.String())
		}
	}
	if n := pgtest.One[int](t, pool, `
		select count(*) from river_leader where expires_at between now() and now() + interval '5 minutes'`); n != 1 {
		t.Error("the leader is not elected anew")
	}
}

// River has the time of the database.
func TestJobsHaveTheTimeOfTheDatabase(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	at := time.Now().Add(-time.Hour)
	pgtest.SetClock(t, pool, at)
	cfg := (&Server{log: slog.New(slog.DiscardHandler)}).riverConfig(nil, clock.ForJobs(t.Context(), pool))
	if got := cfg.Test.Time.Now(); got.Sub(at).Abs() > time.Minute {
		t.Errorf("it is %s", got)
	}
}

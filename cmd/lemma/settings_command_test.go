package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"lemma/pgtest"
	"lemma/secrets"
)

// Doctor shows the public URL, and processes with another one; the command lists and removes them.
func TestDoctorShowsThePublicURL(t *testing.T) {
	t.Parallel()
	s := pgtest.NewShop(t)
	doctor := func(want string, env ...string) (out string) {
		t.Helper()
		out = strings.Join(strings.Fields(mustRun(t, append(on(s.Pool), env...), "doctor", "--allow-no-fsync")), " ")
		if !strings.Contains(out, want) {
			t.Errorf("doctor does not print %q: %s", want, out)
		}
		return out
	}
	const first, second = "https://first.example", "https://second.example"
	doctor("ok public URL none: marketing emails are refused")
	doctor("ok public URL "+first+", once a process has started", "LEMMA_PUBLIC_URL="+first)
	s.Exec(`insert into providers (workspace_id, id, name, channel, kind, config, receives)
		values ($1, gen_random_uuid(), 'p', 'email', 'smtp', '{}', true)`, s.Workspace)
	doctor("warn public URL none, so that no events come")
	states := func(name, value string, ago time.Duration) {
		t.Helper()
		s.Exec(`insert into settings (name, value, started_at) values ($1, $2, now() - $3::interval)`, name, value, ago)
	}
	states("LEMMA_PUBLIC_URL", first, 0)
	doctor("ok public URL " + first)
	doctor("warn public URL LEMMA_PUBLIC_URL of this command is another: "+second, "LEMMA_PUBLIC_URL="+second)
	states("LEMMA_PUBLIC_URL", second, time.Minute)
	doctor("warn public URL a process has another LEMMA_PUBLIC_URL, which is not used: " + second)
	s.Exec(`update settings set seen_at = now() - interval '1 minute' where value = $1`, second)
	if out := doctor("ok public URL " + first); strings.Contains(out, "warn public URL") {
		t.Errorf("the URL of no process that runs: %s", out)
	}
	mustRun(t, on(s.Pool), "settings", "remove", "LEMMA_PUBLIC_URL", second)
	if out := mustRun(t, on(s.Pool), "settings", "list"); !strings.Contains(out, first) || strings.Contains(out, second) {
		t.Errorf("listed: %s", out)
	}
}

// Doctor compares the settings of processes, and names values that count although their
// processes have ended.
func TestDoctorComparesSettings(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	const kept = "LEMMA_BATCH_LOG_RETENTION"
	doctor := func(want string) {
		t.Helper()
		out := strings.Join(strings.Fields(mustRun(t, on(pool), "doctor", "--allow-no-fsync")), " ")
		if !strings.Contains(out, want) {
			t.Errorf("doctor does not print %q: %s", want, out)
		}
	}
	states := func(name, value string, ago time.Duration) {
		t.Helper()
		pgtest.Exec(t, pool, `insert into settings (name, value, started_at, seen_at) values ($1, $2, now(), now() - $3::interval)
			on conflict (name, value) do update set seen_at = excluded.seen_at`, name, value, ago)
	}
	states("LEMMA_EVENT_WAIT", "10m0s", 0)
	states("LEMMA_EVENT_WAIT", "20m0s", time.Hour)
	states(kept, "1000h0m0s", 0)
	states(kept, "900h0m0s", time.Hour)
	states("LEMMA_ARCHIVE", "false", time.Hour)
	doctor("ok settings those of all processes that run are equal")
	doctor("ok partitions of batch_log 4 months since")
	doctor("kept for 41 days after the month")
	states(kept, "2000h0m0s", time.Hour)
	doctor("warn " + kept + " 2000h0m0s counts, which a process had until ")
	doctor("if none will have it again, run lemma settings remove " + kept + " 2000h0m0s")
	doctor("kept for 83 days after the month")
	mustRun(t, on(pool), "settings", "remove", kept, "2000h0m0s")
	doctor("ok settings those of all processes that run are equal")
	states("LEMMA_ARCHIVE", "true", time.Hour)
	doctor("ok settings those of all processes that run are equal") // no worker runs that drops
	states("LEMMA_ARCHIVE", "false", 0)
	doctor("warn LEMMA_ARCHIVE true counts, which a process had until ")
	states("LEMMA_EVENT_WAIT", "20m0s", 0)
	doctor("warn LEMMA_EVENT_WAIT processes have different values: ")
}

// A process stores what must be equal in all processes, and a worker also what must be in all
// workers. docs/reference/settings.md lists both.
func TestSharedSettings(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/reference/settings.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Settings of all processes\n")
	section, _, _ = strings.Cut(section, "\n## ")
	listed := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| (`LEMMA_.*`) \\| (all|workers) \\|").FindAllStringSubmatch(section, -1) {
		for _, name := range regexp.MustCompile("LEMMA_[A-Z0-9_]+").FindAllString(row[1], -1) {
			listed[name] = row[2]
		}
	}
	c := defaultConfig()
	c.SecretKey, c.PublicURL, c.Blobs, c.Archive = secrets.NewKey(), "https://lemma.example", "s3://bucket/a?region=eu-1", true
	workers, all := c.shared(true), c.shared(false)
	for name := range workers {
		who := "workers"
		if _, ok := all[name]; ok {
			who = "all"
		}
		if listed[name] != who {
			t.Errorf("%s concerns %s, and the page lists it for %q", name, who, listed[name])
		}
	}
	if len(listed) != len(workers) {
		t.Errorf("%d settings are listed instead of %d", len(listed), len(workers))
	}
	if got := workers["LEMMA_SECRET_KEY"]; len(got) != 8 || strings.Contains(c.SecretKey, got) {
		t.Errorf("of the secret key %q is stored", got)
	}
	if got := workers["LEMMA_BLOBS"] + workers["LEMMA_ARCHIVE"] + workers["LEMMA_LEASE"]; got != "s3://bucket/atrue5m0s" {
		t.Error(got)
	}
	c = defaultConfig()
	for _, name := range []string{"LEMMA_PUBLIC_URL", "LEMMA_BLOBS", "LEMMA_SECRET_KEY"} {
		if value, ok := c.shared(true)[name]; ok {
			t.Errorf("%s is not set, and has the value %q", name, value)
		}
	}
}

package main

import (
	"strings"
	"testing"

	"lemma/pgtest"
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
	s.Exec(`insert into public_urls (url, started_at) values ($1, now())`, first)
	doctor("ok public URL " + first)
	doctor("warn public URL LEMMA_PUBLIC_URL of this command is another: "+second, "LEMMA_PUBLIC_URL="+second)
	s.Exec(`insert into public_urls (url, started_at) values ($1, now() - interval '1 minute')`, second)
	doctor("warn public URL a process has another LEMMA_PUBLIC_URL, which is not used: " + second)
	s.Exec(`update public_urls set seen_at = now() - interval '1 minute' where url = $1`, second)
	if out := doctor("ok public URL " + first); strings.Contains(out, "warn public URL") {
		t.Errorf("the URL of no process that runs: %s", out)
	}
	mustRun(t, on(s.Pool), "public-urls", "remove", second)
	if out := mustRun(t, on(s.Pool), "public-urls", "list"); !strings.Contains(out, first) || strings.Contains(out, second) {
		t.Errorf("listed: %s", out)
	}
}

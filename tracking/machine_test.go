package tracking

import (
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lemma/notifications"
	"lemma/pgtest"
)

func TestMachinesByTheirRequest(t *testing.T) {
	t.Parallel()
	for agent, want := range map[string]struct{ open, click string }{
		browser: {},
		"Mozilla/5.0 (iPhone; CPU iPhone OS 18_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Mobile/15E148": {},
		"Mozilla/5.0 (Linux; Android 9; CUBOT_X19) AppleWebKit/537.36 Chrome/138.0 Mobile Safari/537.36":                {},
		"Microsoft Office/16.0 (Microsoft Outlook 16.0; Pro)":                                                           {},
		"Mozilla/5.0": {applePrivacy, ""},
		"Mozilla/5.0 (Windows NT 5.1; rv:11.0) Gecko Firefox/11.0 (via ggpht.com GoogleImageProxy)": {gmailProxy, gmailProxy},
		"YahooMailProxy; https://help.yahoo.com/kb/yahoo-mail-proxy-SLN28749.html":                  {yahooProxy, yahooProxy},
		"":                                 {"", scanner},
		"BarracudaCentral/1.0":             {scanner, scanner},
		"Slackbot-LinkExpanding 1.0":       {scanner, scanner},
		"python-requests/2.32":             {scanner, scanner},
		"Mozilla/5.0 HeadlessChrome/138.0": {scanner, scanner},
	} {
		h := http.Header{"User-Agent": {agent}}
		if open, click := machineOf(h, false), machineOf(h, true); open != want.open || click != want.click {
			t.Errorf("%q: open %q, click %q", agent, open, click)
		}
		h.Set("Sec-Purpose", "prefetch;prerender")
		if machineOf(h, true) == "" {
			t.Errorf("%q: a prefetch is a person's", agent)
		}
	}
}

// A click is too fast only if it is known when the message was accepted: not before the
// outcome is committed, nor if evidence proves the acceptance, nor by the second attempt if
// the first may have been accepted.
func TestAClickIsTooFastOnlyAfterAKnownAcceptance(t *testing.T) {
	b := setup(t)
	b.Exec(`delete from attempts where workspace_id = $1`, b.Workspace)
	for profile, attempts := range [][]string{
		{`1, 'accepted', true, 'response'`},
		{},
		{`1, 'accepted', true, 'evidence'`},
		{`1, 'unknown', false, 'reaper'`, `2, 'accepted', true, 'response'`},
	} {
		for _, attempt := range attempts {
			b.Exec(`insert into attempts (workspace_id, batch_id, ordinal, attempt, outcome, final, basis, at)
				select workspace_id, batch_id, ordinal, `+attempt+`, $3 from notifications where workspace_id = $1 and profile_key = $2`,
				b.Workspace, strconv.Itoa(profile), b.sent)
		}
		b.put(b.event(profile, clicked, 1, -time.Minute), b.event(profile, clicked, 1, fast-time.Millisecond))
	}
	b.applyAll()
	b.wantCounts(notifications.Engagement{Clicks: 6, UniqueClicks: 3, MachineClicks: 2})
}

// One rule for each notification; half of the events are in one chunk with those that
// they are compared with, and half are in others.
func TestMachinesByOtherEvents(t *testing.T) {
	for _, together := range []bool{true, false} {
		t.Run("", func(t *testing.T) {
			b := setup(t)
			var all []event
			for _, e := range []struct {
				profile int
				kind    string
				link    int
				at      time.Duration
			}{
				{0, clicked, 1, fast - time.Millisecond}, {1, clicked, 1, fast + time.Millisecond},
				{2, clicked, 1, time.Minute}, {2, clicked, 2, time.Minute + beside},
				{3, clicked, 1, time.Minute}, {3, clicked, 1, time.Minute + beside},
				{4, clicked, 1, time.Minute}, {4, clicked, 2, time.Minute + beside + time.Millisecond},
				{5, probed, 1, time.Minute}, {5, clicked, 1, time.Minute + before}, {6, probed, 1, time.Minute}, {6, clicked, 2, time.Minute + beside},
				{7, clicked, 1, time.Minute}, {7, probed, 1, time.Minute + time.Second}, {8, opened, 0, time.Millisecond}, {9, probed, 1, time.Minute},
			} {
				all = append(all, b.event(e.profile, e.kind, e.link, e.at))
			}
			if together {
				b.put(all...)
			} else {
				for _, e := range all { // the first is applied while the second is queued
					b.put(e)
				}
				for _, e := range all {
					_, err := b.Apply(t.Context(), time.Since(e.at))
					b.Must(err)
				}
			}
			b.applyAll()
			got := pgtest.Column[string](t, b.Pool, `
				select concat_ws(' ', n.profile_key, e.link, e.machine) from tracking_events e
				join notifications n on n.workspace_id = e.workspace_id and n.origin_id = e.origin_id and n.key = e.key
				where e.type = 'clicked' order by n.profile_key, e.link, e.occurred_at`)
			want := []string{"0 1 too_fast", "1 1", "2 1 several_links", "2 2 several_links", "3 1", "3 1", "4 1", "4 2", "5 1 probed_before",
				"6 2", "7 1"}
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
			b.wantCounts(notifications.Engagement{Opens: 1, UniqueOpens: 1, Clicks: 7, UniqueClicks: 5, MachineClicks: 4})
		})
	}
}

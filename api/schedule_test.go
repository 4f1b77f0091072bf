package api

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lemma/campaigns"
)

func TestLocalTimes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ at, zone, want string }{
		"with an offset":              {"2027-06-01T09:00:00+02:00", "", "2027-06-01T07:00:00Z"},
		"summer":                      {"2027-06-01T09:00:00", "Europe/Berlin", "2027-06-01T07:00:00Z"},
		"without seconds":             {"2027-12-01T09:00", "Europe/Berlin", "2027-12-01T08:00:00Z"},
		"the hour before spring":      {"2027-03-28T01:59:59", "Europe/Berlin", "2027-03-28T00:59:59Z"},
		"skipped in spring":           {"2027-03-28T02:30:00", "Europe/Berlin", "2027-03-28T01:00:00Z"},
		"the hour after spring":       {"2027-03-28T03:00:00", "Europe/Berlin", "2027-03-28T01:00:00Z"},
		"twice in autumn, the first":  {"2027-10-31T02:30:00", "Europe/Berlin", "2027-10-31T00:30:00Z"},
		"after autumn":                {"2027-10-31T03:00:00", "Europe/Berlin", "2027-10-31T02:00:00Z"},
		"skipped, west of Greenwich":  {"2027-03-14T02:15:00", "America/New_York", "2027-03-14T07:00:00Z"},
		"twice, west of Greenwich":    {"2027-11-07T01:15:00", "America/New_York", "2027-11-07T05:15:00Z"},
		"half an hour of summer time": {"2027-10-03T02:15:00", "Australia/Lord_Howe", "2027-10-02T15:30:00Z"},
		"a zone fourteen hours ahead": {"2027-01-01T00:00:00", "Pacific/Kiritimati", "2026-12-31T10:00:00Z"},
		"a day that a zone left out":  {"2011-12-30T12:00:00", "Pacific/Apia", "2011-12-30T10:00:00Z"},
	} {
		got, err := schedule{c.at, c.zone}.instant()
		if err != nil || got.UTC().Format(time.RFC3339) != c.want {
			t.Errorf("%s: %s in %s is %s, want %s (%v)", name, c.at, c.zone, got.UTC().Format(time.RFC3339), c.want, err)
		}
	}
}

func TestProgress(t *testing.T) {
	t.Parallel()
	began := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	s := &server{Options: Options{Now: func() time.Time { return began.Add(10 * time.Second) }}.withDefaults()}
	sending := campaigns.Campaign{Status: campaigns.Sending, SendingAt: &began, FannedOutAt: &began,
		Counts: campaigns.Counts{Audience: 4000, Sent: 900, Failed: 90, Orphaned: 10, Skipped: 500, Pending: 2400, Processing: 100}}
	rate, left := 100.0, int64(25)
	if diff := cmp.Diff(progress{Ended: 1500, RatePerSecond: &rate, ETASeconds: &left}, s.progressOf(sending)); diff != "" {
		t.Error(diff)
	}
	sending.FannedOutAt = nil // the fan-out has not ended
	if p := s.progressOf(sending); p.ETASeconds != nil || p.RatePerSecond == nil {
		t.Errorf("while it is read: %+v", p)
	}
	sending.Status = campaigns.Paused
	if p := s.progressOf(sending); p.ETASeconds != nil || p.RatePerSecond != nil || p.Ended != 1500 {
		t.Errorf("paused: %+v", p)
	}
}

func TestListsPage(t *testing.T) {
	b := setup(t)
	var want, got []string
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		want = append([]string{b.do("POST", "/v1/templates", object{"name": name, "subject": "s", "text": "t"}).is(201).id()}, want...)
	}
	path := "/v1/templates?limit=2"
	for {
		page := b.do("GET", path, nil).is(200)
		for _, one := range page.json["data"].([]any) {
			got = append(got, one.(object)["id"].(string))
		}
		next, more := page.json["next_cursor"].(string)
		if more != page.json["has_more"].(bool) {
			t.Errorf("next_cursor and has_more differ: %s", page.body)
		}
		if !more {
			break
		}
		path = "/v1/templates?limit=2&cursor=" + next
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

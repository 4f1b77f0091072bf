package api

import (
	"strings"
	"testing"

	"lemma/campaigns"
	"lemma/notifications"
)

// carriersOf are kinds of providers with one capability each.
func carriersOf(kind string) Capabilities {
	return map[string]Capabilities{"idempotent": {IdempotencyKey: true}, "collapsing": {Collapse: true}}[kind]
}

// The bound of a campaign narrows when it has ended, and names second attempts.
func TestBoundOfACampaign(t *testing.T) {
	t.Parallel()
	s := &server{Options: Options{Capabilities: carriersOf}}
	const most, least = "at_least_once", "at_most_once"
	for name, c := range map[string]struct {
		kind, strategy, word, sentence string
		status                         campaigns.Status
		counts                         campaigns.Counts
	}{
		"a draft":                       {"smtp", most, "twice", "only if the outcome", campaigns.Draft, campaigns.Counts{}},
		"sending, without a second":     {"smtp", most, "twice", "only if", campaigns.Sending, campaigns.Counts{Sent: 9, Pending: 1}},
		"paused":                        {"smtp", most, "twice", "only if", campaigns.Paused, campaigns.Counts{Sent: 9}},
		"at most once":                  {"smtp", least, "once", "at_most_once", campaigns.Sending, campaigns.Counts{}},
		"an idempotent carrier":         {"idempotent", most, "once", "recognises", campaigns.Sending, campaigns.Counts{Retried: 3}},
		"a collapsing carrier":          {"collapsing", most, "replaced", "replaces", campaigns.Sending, campaigns.Counts{}},
		"completed":                     {"smtp", most, "once", "has ended", campaigns.Completed, campaigns.Counts{Sent: 10}},
		"completed, with second ones":   {"smtp", most, "twice", "3 notifications", campaigns.Completed, campaigns.Counts{Sent: 10, Retried: 3}},
		"the same, collapsing":          {"collapsing", most, "replaced", "3 notifications", campaigns.Completed, campaigns.Counts{Retried: 3}},
		"cancelled":                     {"smtp", most, "once", "has ended", campaigns.Cancelled, campaigns.Counts{Sent: 4, Cancelled: 6}},
		"cancelled, with calls open":    {"smtp", most, "twice", "only if", campaigns.Cancelled, campaigns.Counts{Sent: 4, Processing: 6}},
		"cancelled, with rows to end":   {"smtp", most, "twice", "only if", campaigns.Cancelled, campaigns.Counts{Sent: 4, Pending: 6}},
		"collapsing, without a second":  {"collapsing", most, "once", "has ended", campaigns.Completed, campaigns.Counts{Sent: 10}},
		"failed before it had sent any": {"smtp", most, "once", "has ended", campaigns.Failed, campaigns.Counts{}},
	} {
		got := s.boundOfCampaign(campaigns.Campaign{ProviderKind: c.kind, Strategy: c.strategy, Status: c.status, Counts: c.counts})
		if got.Word != c.word || !strings.Contains(got.Sentence, c.sentence) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// The bound of a notification agrees with the deliveries of its explanation.
func TestBoundOfANotification(t *testing.T) {
	t.Parallel()
	s := &server{Options: Options{Capabilities: carriersOf}}
	for name, c := range map[string]struct {
		kind, word, sentence  string
		least, most, possible int
	}{
		"skipped or rejected":       {"smtp", "never", "No delivery", 0, 0, 0},
		"sent, or the last call":    {"smtp", "once", "no second one", 1, 1, 1},
		"waiting":                   {"smtp", "twice", "only if", 0, 0, 2},
		"unknown, and called again": {"smtp", "twice", "only if", 0, 1, 2},
		"orphaned after two calls":  {"smtp", "twice", "may have been", 0, 2, 2},
		"accepted twice":            {"smtp", "twice", "Two deliveries", 2, 2, 2},
		"accepted twice by a push":  {"collapsing", "replaced", "The second replaces", 2, 2, 2},
		"an idempotent carrier":     {"idempotent", "once", "recognises", 0, 2, 2},
		"the same, before any call": {"idempotent", "once", "recognises", 0, 0, 2},
		"the same, skipped":         {"idempotent", "never", "No delivery", 0, 0, 0},
	} {
		got := s.boundOf(notifications.Explanation{ProviderKind: c.kind, DeliveriesAtLeast: c.least, DeliveriesAtMost: c.most,
			DeliveriesPossible: c.possible})
		if got.Word != c.word || !strings.Contains(got.Sentence, c.sentence) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

package notifications_test

import (
	"testing"

	"lemma/notifications"
)

// leased is a batch in the hands of a worker, called through a row.
const leased = `update batches set status = 'leased', leased_by = 't', lease_until = now() + interval '1 hour', called_through = `

// ofCampaign precedes an update of batches: they are of a campaign over a provider with a rate.
const ofCampaign = `with b as (select workspace_id as ws, origin_id as id from batches),
	p as (insert into providers (workspace_id, id, name, channel, kind, config, rate_per_second)
		select ws, id, 'p', 'email', 'smtp', '{}', 2 from b),
	s as (insert into data_sources (workspace_id, id, name, kind, address, dsn) select ws, id, 's', 'postgres', 'a', '' from b),
	a as (insert into audiences (workspace_id, id, data_source_id, name, sql, key_column, email_column, columns)
		select ws, id, id, 'a', 'q', 'k', 'e', '[]' from b),
	t as (insert into templates (workspace_id, id, name, channel) select ws, id, 't', 'email' from b),
	v as (insert into template_versions (workspace_id, template_id, version, subject, html, text, variables)
		select ws, id, 1, 's', 'h', 't', '{}' from b),
	c as (insert into campaigns (workspace_id, id, name, audience_id, template_id, template_version, provider_id, from_email)
		select ws, id, 'c', id, id, 1, id, 'a@example.com' from b)
	`

// The summary and what a notification waits for, in states that need no call.
func TestSummaries(t *testing.T) {
	for _, c := range []struct {
		name     string
		state    string // SQL
		waiting  string
		possible int
		summary  string
	}{
		{"never called", `select 1`, "worker", 2,
			"waiting to be called: it is due; a second delivery is possible only if the outcome of a call is unknown"},
		{"at_most_once", `update batches set max_attempts = 1`, "worker", 1,
			"waiting to be called: it is due; no second delivery is possible"},
		{"due later", `update batches set due_at = now() + interval '1 hour', max_attempts = 1`, "due", 1,
			"waiting to be called: its batch is not due yet; no second delivery is possible"},
		{"due later by the rate", ofCampaign + `update batches set due_at = now() + interval '1 hour', max_attempts = 1`, "due", 1,
			"waiting to be called: its batch is due then by the rate of its provider, or sooner if the rate is unused; " +
				"no second delivery is possible"},
		{"due later by the offset of its variant", ofCampaign + `, i as (
			insert into iterations (workspace_id, id, campaign_id, sample_percent, holdout_percent) select ws, id, id, 100, 0 from b), variant as (
			insert into iteration_variants (workspace_id, iteration_id, ordinal, name, weight, content_id, send_offset)
			select b.workspace_id, origin_id, 0, 'A', 1, content_id, interval '1 hour' from batches b)
			update batches set due_at = now() + interval '1 hour', max_attempts = 1`, "due", 1,
			"waiting to be called: its batch is due then by the send_offset of its variant; no second delivery is possible"},
		{"tried again later", ofCampaign + `update batches set due_at = now() + interval '1 hour', max_attempts = 1, open = '{0}'`, "due", 1,
			"waiting to be called: its batch is not due yet; no second delivery is possible"},
		{"refused for now", `update batches set retry_at = array[now() + interval '1 hour'], max_attempts = 1`, "due", 1,
			"waiting to be called: the carrier refused it for now, or its server is slow, and it is called then; no second delivery is possible"},
		{"refused for now, while others of its batch are called",
			leased + `-1, max_attempts = 1, retry_at = array[now() + interval '1 hour']`, "due", 1,
			"waiting to be called: the carrier refused it for now, or its server is slow, and it is called then; no second delivery is possible"},
		{"refused, and its time has come", `update batches set retry_at = array[now()], max_attempts = 1`, "worker", 1,
			"waiting to be called: it is due; no second delivery is possible"},
		{"refused for now, and paused", `update batches set retry_at = array[now() + interval '1 hour'], gate = 'held', max_attempts = 1`,
			"resume", 1, "waiting to be called: its campaign or flow is paused; no second delivery is possible"},
		{"paused", `update batches set gate = 'held', max_attempts = 1`, "resume", 1,
			"waiting to be called: its campaign or flow is paused; no second delivery is possible"},
		{"paused by Lemma", `with b as (
			update batches set gate = 'held', max_attempts = 1 returning workspace_id, origin_id, gen_random_uuid() as flow_id),
			v as (insert into flow_versions (workspace_id, flow_id, version, definition, request, status, published_at, nodes)
			select workspace_id, flow_id, 1, '{}', flow_id, 'published', now(), '{}' from b),
			o as (insert into flow_origins (workspace_id, origin_id, flow_id) select workspace_id, origin_id, flow_id from b)
			insert into flows (workspace_id, id, name, live_version, status, status_reason, status_detail, paused_at)
			select workspace_id, flow_id, 'f', 1, 'paused', 'provider_errors', 'it has failed since noon', now() from b`, "resume", 1,
			"waiting to be called: its campaign or flow is paused (provider_errors: it has failed since noon); no second delivery is possible"},
		{"resumed, and not released yet", `with b as (update batches set gate = 'held', max_attempts = 1 returning workspace_id, origin_id)
			insert into releases (workspace_id, origin_id) select workspace_id, origin_id from b`, "resume", 1,
			"waiting to be called: its campaign or flow was resumed, and the batches that waited are released one after the other; " +
				"no second delivery is possible"},
		{"past its send deadline", `update batches set expires_at = now()`, "expiry", 0,
			"waiting to be called: its send deadline has passed, and the sweep skips it; no second delivery is possible"},
		{"leased", leased + `-1, max_attempts = 1`, "window", 1,
			"waiting to be called: a worker holds its batch, and no window contains it; no second delivery is possible"},
		{"leased and cancelled", leased + `-1, gate = 'cancelled'`, "cancel", 0,
			"waiting to be called: a worker holds its batch and gives it back as cancelled; no second delivery is possible"},
		{"in a window", leased + `0`, "answer", 2,
			"being called, or waiting for the answer: if its outcome is unknown when the lease expires, the reaper decides; " +
				"a second delivery is possible, since it is called once more if no answer comes"},
		{"cancelled", `update batches set status = 'cancelled', cancelled = 1, finished_at = now()`, "", 0,
			"not sent: cancelled before it was called; no second delivery was possible"},
		{"expired", `update batches set status = 'expired', skipped = 1, finished_at = now()`, "", 0,
			"not sent (expired); no second delivery was possible"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := setup(t)
			f.insert(recipients(1))
			f.Exec(c.state)
			f.wantExplanation(c.waiting, c.possible, c.summary)
		})
	}
}

// The summary of outcomes.
func TestSummariesOfOutcomes(t *testing.T) {
	for outcome, c := range map[string]struct {
		basis, counter string
		possible       int
		summary        string
	}{
		"accepted": {"response", "sent", 1, "sent: the carrier accepted it on attempt 1; no second delivery was possible"},
		"rejected": {"response", "failed", 0, "not sent (rejected): the carrier did not accept it; no second delivery was possible"},
		"unknown": {"reaper", "orphaned", 1,
			"unknown (unknown): it may have been sent, and is never sent again; no second delivery was possible"},
	} {
		t.Run(outcome, func(t *testing.T) {
			f := setup(t)
			f.insert(recipients(1))
			f.end(0, outcome, c.basis, c.counter)
			f.Exec(`update batches set status = 'done', finished_at = now()`)
			f.wantExplanation("", c.possible, c.summary)
		})
	}
}

func (f *fixture) wantExplanation(waiting string, possible int, summary string) {
	f.T.Helper()
	e, err := f.Explain(f.T.Context(), f.Workspace, f.origin, keyOf(0))
	f.Must(err)
	if e.Summary != summary || e.DeliveriesPossible != possible {
		f.T.Errorf("%d possible: %q\nwant %d: %q", e.DeliveriesPossible, e.Summary, possible, summary)
	}
	if got := waitsFor(e); got != waiting {
		f.T.Errorf("it waits for %q, want %q", got, waiting)
	}
}

func waitsFor(e notifications.Explanation) string {
	if e.Waiting == nil {
		return ""
	}
	return e.Waiting.For
}

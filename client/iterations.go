package client

import (
	"context"
	"iter"
	"net/http"
	"time"
)

// IterationSummary is an entry of the list of iterations.
type IterationSummary struct {
	ID           string     `json:"id"`
	CampaignID   string     `json:"campaign_id"`
	Status       string     `json:"status"`
	StatusReason *string    `json:"status_reason"`
	StatusDetail *string    `json:"status_detail"`
	CreatedAt    time.Time  `json:"created_at"`
	StartedAt    *time.Time `json:"started_at"`
	CutOffAt     *time.Time `json:"cut_off_at"`
	Winner       *string    `json:"winner"`
	DecidedBy    *string    `json:"decided_by"` // evaluation, on_inconclusive, person
	DecidedAt    *time.Time `json:"decided_at"`
	Allowed      []string   `json:"allowed_actions"`
}

// IterationFilter limits a list.
type IterationFilter struct{ CampaignID, Status string }

// ListIterations reads the A/B tests of campaigns, newest first.
func (c *Client) ListIterations(ctx context.Context, f IterationFilter, options ...CallOption) iter.Seq2[IterationSummary, error] {
	fill := func(r *request) {
		r.set("campaign_id", f.CampaignID)
		r.set("status", f.Status)
	}
	return each[IterationSummary](ctx, c, fill, options, "/v1/iterations")
}

// IterationResults are the numbers of an A/B test over time.
type IterationResults struct {
	Status   string          `json:"status"`
	Winner   *string         `json:"winner"`
	CutOffAt *time.Time      `json:"cut_off_at"`
	Sentence *string         `json:"sentence"` // the verdict; nil before it
	Series   []VariantSeries `json:"series"`
}

// VariantSeries are the numbers of one variant, cumulative.
type VariantSeries struct {
	Variant       *string        `json:"variant"`        // nil: the holdout
	StoppedReason *string        `json:"stopped_reason"` // why the guardrail stopped it; nil: it competes
	Points        []VariantPoint `json:"points"`
}

// VariantPoint are the numbers of a variant at a time.
type VariantPoint struct {
	At           time.Time     `json:"at"`
	Recipients   int64         `json:"recipients"`
	Sent         int64         `json:"sent"`
	Failed       int64         `json:"failed"`
	Skipped      int64         `json:"skipped"`
	Delivered    int64         `json:"delivered"`
	Opens        int64         `json:"unique_opens"`
	Clicks       int64         `json:"unique_clicks"`
	Unsubscribes int64         `json:"unsubscribes"`
	Complaints   int64         `json:"complaints"`
	Converted    *int64        `json:"converted"` // nil: the test has no metric
	Excluded     int64         `json:"excluded"`  // opened or clicked by machines only
	Rate         *float64      `json:"rate"`
	Interval     *RateInterval `json:"interval"`
}

// RateInterval is a confidence interval.
type RateInterval struct {
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// ReadResults returns the results of an iteration.
func (c *Client) ReadResults(ctx context.Context, iteration string, options ...CallOption) (IterationResults, error) {
	return call[IterationResults](ctx, c, nil, options, http.MethodGet, "/v1/iterations/%s/results", iteration)
}

package client

import (
	"context"
	"net/http"
	"time"
)

// Iteration is the A/B test of a campaign.
type Iteration struct {
	ID           string           `json:"id"`
	CampaignID   string           `json:"campaign_id"`
	Status       string           `json:"status"`
	StatusReason *string          `json:"status_reason"`
	StatusDetail *string          `json:"status_detail"`
	Experiment   Experiment       `json:"experiment"`
	Assignment   AssignmentPlan   `json:"assignment"`
	StartedAt    *time.Time       `json:"started_at"`
	CutOffAt     *time.Time       `json:"cut_off_at"`
	Winner       *string          `json:"winner"`
	DecidedBy    *string          `json:"decided_by"` // evaluation, on_inconclusive, person
	DecidedAt    *time.Time       `json:"decided_at"`
	CreatedAt    time.Time        `json:"created_at"`
	Verdict      *Verdict         `json:"verdict"`
	Stopped      []StoppedVariant `json:"stopped_variants"`
	Warnings     []string         `json:"warnings"` // why the sample is too small
	Timeline     []IterationEvent `json:"timeline"`
	Allowed      []string         `json:"allowed_actions"`
}

// Experiment is what an iteration compares, and how.
type Experiment struct {
	Variants       []Variant  `json:"variants"` // the first is the control
	SamplePercent  float64    `json:"sample_percent"`
	HoldoutPercent float64    `json:"holdout_percent"`
	Metric         *Metric    `json:"metric"` // nil: a split without a winner
	Duration       *string    `json:"duration"`
	EvaluateAt     *time.Time `json:"evaluate_at"`
	MinSample      int64      `json:"min_sample"`
	Confidence     float64    `json:"confidence"`
	OnInconclusive string     `json:"on_inconclusive"` // best, control, hold
	Guardrail      *Guardrail `json:"guardrail"`
	BaseRate       float64    `json:"base_rate"`
	Effect         float64    `json:"effect"`
}

// Variant replaces parts of the campaign's message.
type Variant struct {
	Name            string  `json:"name"`
	Weight          int     `json:"weight"` // in percent
	TemplateID      *string `json:"template_id"`
	TemplateVersion *int    `json:"template_version"`
	Subject         *string `json:"subject"`
	Preheader       *string `json:"preheader"`
	FromName        *string `json:"from_name"`
	SendOffset      string  `json:"send_offset"` // ISO 8601
}

// Metric selects the recipients that have converted.
type Metric struct {
	Type         *string `json:"type"` // event, sql, unique_opens, unique_clicks
	Event        *string `json:"event"`
	DataSourceID *string `json:"data_source_id"`
	SQL          *string `json:"sql"`
}

// Guardrail stops variants whose recipients unsubscribe or complain too often.
type Guardrail struct {
	Metric string  `json:"metric"` // unsubscribes, complaints
	Limit  float64 `json:"limit"`  // fraction of sent notifications
}

// AssignmentPlan is how profiles are assigned, so that any program can recompute it.
type AssignmentPlan struct {
	Function string       `json:"function"`
	Holdout  PercentSplit `json:"holdout"`
	Sample   PercentSplit `json:"sample"`
	Variant  VariantSplit `json:"variant"`
}

// PercentSplit has profiles with a bucket below Below in it.
type PercentSplit struct {
	Salt    string `json:"salt"`
	Buckets uint64 `json:"buckets"`
	Below   uint64 `json:"below"`
}

// VariantSplit assigns the first variant whose threshold is above the bucket.
type VariantSplit struct {
	Salt       string   `json:"salt"`
	Buckets    uint64   `json:"buckets"`
	Thresholds []uint64 `json:"thresholds"`
}

// Verdict has the numbers at the cut-off and what was decided by them.
type Verdict struct {
	CutOffAt          time.Time        `json:"cut_off_at"`
	Method            string           `json:"method"`
	Confidence        float64          `json:"confidence"`
	MinSample         int64            `json:"min_sample"`
	Outcome           string           `json:"outcome"`
	Best              string           `json:"best"`
	Variants          []VariantVerdict `json:"variants"`
	Comparisons       []Comparison     `json:"comparisons"`
	SampleRatioP      float64          `json:"sample_ratio_p"`
	Excluded          map[string]int64 `json:"excluded"` // by reason
	Sentence          string           `json:"sentence"`
	EvaluatedAt       time.Time        `json:"evaluated_at"`
	HoldoutRecipients int64            `json:"holdout_recipients"`
	HoldoutConverted  int64            `json:"holdout_converted"`
}

// VariantVerdict has the numbers of a variant at the cut-off.
type VariantVerdict struct {
	Name           string       `json:"name"`
	Stopped        string       `json:"stopped"` // why the guardrail stopped it; empty: it competed
	Recipients     int64        `json:"recipients"`
	Sent           int64        `json:"sent"`
	Converted      int64        `json:"converted"`
	Excluded       int64        `json:"excluded"`
	Rate           float64      `json:"rate"`
	Interval       RateInterval `json:"interval"`
	ChanceToBeBest float64      `json:"chance_to_be_best"`
}

// Comparison compares the best variant with another.
type Comparison struct {
	Variant    string       `json:"variant"`
	Effect     float64      `json:"effect"`
	Interval   RateInterval `json:"interval"`
	Z          float64      `json:"z"`
	P          float64      `json:"p"`
	AdjustedP  float64      `json:"adjusted_p"`
	Conclusive bool         `json:"conclusive"`
}

// StoppedVariant is a variant that the guardrail stopped.
type StoppedVariant struct {
	Variant string    `json:"variant"`
	At      time.Time `json:"at"`
	Reason  string    `json:"reason"`
}

// IterationEvent is an entry of the timeline.
type IterationEvent struct {
	At     time.Time `json:"at"`
	Event  string    `json:"event"`
	Detail string    `json:"detail"`
}

// Assignment is the group and the variant of a profile, with the buckets that led to them.
type Assignment struct {
	ProfileKey    string  `json:"profile_key"`
	Group         string  `json:"group"`   // holdout, sample, rest
	Variant       *string `json:"variant"` // nil: none, or not known, as Detail states
	HoldoutBucket uint64  `json:"holdout_bucket"`
	SampleBucket  uint64  `json:"sample_bucket"`
	VariantBucket uint64  `json:"variant_bucket"`
	Detail        string  `json:"detail"`
}

// PowerRequest is a test to plan. Zero values are the defaults of the server.
type PowerRequest struct {
	BaseRate   float64 `json:"base_rate"`
	Effect     float64 `json:"effect"`
	Variants   int     `json:"variants,omitempty"`
	Confidence float64 `json:"confidence,omitempty"`
	Power      float64 `json:"power,omitempty"`
	Recipients int64   `json:"recipients_per_variant,omitempty"`
}

// Power is how many recipients a test needs.
type Power struct {
	Required       int64    `json:"required_per_variant"`
	RequiredTotal  int64    `json:"required_total"`
	Power          *float64 `json:"power"`
	SmallestEffect *float64 `json:"smallest_effect"`
	Warning        *string  `json:"warning"`
}

// GetIteration returns an iteration.
func (c *Client) GetIteration(ctx context.Context, iteration string, options ...CallOption) (Iteration, error) {
	return call[Iteration](ctx, c, nil, options, http.MethodGet, "/v1/iterations/%s", iteration)
}

// SelectWinner decides that a variant is sent to the rest.
func (c *Client) SelectWinner(ctx context.Context, iteration, variant string, options ...CallOption) (Iteration, error) {
	body := map[string]string{"variant": variant}
	return call[Iteration](ctx, c, body, options, http.MethodPost, "/v1/iterations/%s/select_winner", iteration)
}

// StopIteration ends a test without a winner.
func (c *Client) StopIteration(ctx context.Context, iteration string, options ...CallOption) (Iteration, error) {
	return call[Iteration](ctx, c, struct{}{}, options, http.MethodPost, "/v1/iterations/%s/stop", iteration)
}

// ExtendIteration moves the cut-off to a later time.
func (c *Client) ExtendIteration(ctx context.Context, iteration string, until time.Time, options ...CallOption) (Iteration, error) {
	return call[Iteration](ctx, c, map[string]time.Time{"until": until}, options, http.MethodPost, "/v1/iterations/%s/extend", iteration)
}

// ReadAssignment returns how a profile is assigned. With an address, its variant is that of
// the message to it; empty: none is given.
func (c *Client) ReadAssignment(ctx context.Context, iteration, profileKey, address string, options ...CallOption) (Assignment, error) {
	options = append([]CallOption{func(r *request) { r.set("profile_key", profileKey); r.set("address", address) }}, options...)
	return call[Assignment](ctx, c, nil, options, http.MethodGet, "/v1/iterations/%s/assignment", iteration)
}

// ComputePower returns how many recipients a test needs.
func (c *Client) ComputePower(ctx context.Context, p PowerRequest, options ...CallOption) (Power, error) {
	return call[Power](ctx, c, p, options, http.MethodPost, "/v1/iterations/power")
}

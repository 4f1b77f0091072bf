package client

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"time"
)

// Flow is a flow without its definitions, which its versions have.
type Flow struct {
	ID             string            `json:"id"`
	Name           string            `json:"name"`
	Status         string            `json:"status"`        // draft, live, paused, draining, archived
	StatusReason   *string           `json:"status_reason"` // why Lemma paused it
	StatusDetail   *string           `json:"status_detail"`
	LiveVersion    *int              `json:"live_version"` // the version of new enrollments; nil: nothing was published yet
	Metadata       map[string]string `json:"metadata"`
	PausedAt       *time.Time        `json:"paused_at"` // the last pause
	ResumedAt      *time.Time        `json:"resumed_at"`
	CatchUpUntil   *time.Time        `json:"catch_up_until"` // when all that became due during the pause is released
	AllowedActions []string          `json:"allowed_actions"`
	CreatedAt      time.Time         `json:"created_at"`
	UpdatedAt      time.Time         `json:"updated_at"`

	ETag string `json:"-"` // for IfMatch; empty in lists
}

// NewFlow is the body of CreateFlow.
type NewFlow struct {
	Name       string            `json:"name"`
	Metadata   map[string]string `json:"metadata,omitempty"`
	Definition json.RawMessage   `json:"definition,omitempty"` // becomes version 1, a draft
}

// FlowPatch changes a flow; nil leaves a field as it is.
type FlowPatch struct {
	Name     *string           `json:"name,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// FlowLogLine is an action on a flow.
type FlowLogLine struct {
	CreatedAt time.Time      `json:"created_at"`
	Action    string         `json:"action"`     // published, rolled_back, paused, resumed, drained, archived
	Version   *int           `json:"version"`    // the live version after the action
	APIKeyID  *string        `json:"api_key_id"` // nil: Lemma itself
	Detail    map[string]any `json:"detail"`
}

// flow sends a request whose answer is a flow with its ETag.
func (c *Client) flow(ctx context.Context, body any, options []CallOption, method, path string, parts ...any) (Flow, error) {
	f, etag, err := tagged[Flow](ctx, c, body, options, method, path, parts...)
	f.ETag = etag
	return f, err
}

// FlowFilter filters a list. Empty fields are not used.
type FlowFilter struct {
	Status string
	Name   string // contains this, in any case
}

// ListFlows reads flows, newest first.
func (c *Client) ListFlows(ctx context.Context, f FlowFilter, options ...CallOption) iter.Seq2[Flow, error] {
	fill := func(r *request) {
		r.set("status", f.Status)
		r.set("name", f.Name)
	}
	return each[Flow](ctx, c, fill, options, "/v1/flows")
}

// CreateFlow makes a draft.
func (c *Client) CreateFlow(ctx context.Context, f NewFlow, options ...CallOption) (Flow, error) {
	return c.flow(ctx, f, options, http.MethodPost, "/v1/flows")
}

// GetFlow reads a flow.
func (c *Client) GetFlow(ctx context.Context, id string, options ...CallOption) (Flow, error) {
	return c.flow(ctx, nil, options, http.MethodGet, "/v1/flows/%s", id)
}

// UpdateFlow changes a flow's name or metadata.
func (c *Client) UpdateFlow(ctx context.Context, id string, change FlowPatch, options ...CallOption) (Flow, error) {
	return c.flow(ctx, change, options, http.MethodPatch, "/v1/flows/%s", id)
}

// DeleteFlow deletes a draft without enrollments.
func (c *Client) DeleteFlow(ctx context.Context, id string, options ...CallOption) error {
	_, err := call[struct{}](ctx, c, nil, options, http.MethodDelete, "/v1/flows/%s", id)
	return err
}

// PauseFlow refuses triggers and stops active enrollments at their nodes.
func (c *Client) PauseFlow(ctx context.Context, id string, options ...CallOption) (Flow, error) {
	return c.flow(ctx, nil, options, http.MethodPost, "/v1/flows/%s/pause", id)
}

// Resumption are the options of ResumeFlow.
type Resumption struct {
	// CatchUp is the time over which due enrollments are released, in ISO 8601. The default is
	// the length of the pause, at most ten minutes.
	CatchUp string `json:"catch_up,omitempty"`
}

// ResumeFlow ends a pause, or a drain.
func (c *Client) ResumeFlow(ctx context.Context, id string, how Resumption, options ...CallOption) (Flow, error) {
	return c.flow(ctx, how, options, http.MethodPost, "/v1/flows/%s/resume", id)
}

// DrainFlow stops enrolling. The flow is archived when all its enrollments have ended.
func (c *Client) DrainFlow(ctx context.Context, id string, options ...CallOption) (Flow, error) {
	return c.flow(ctx, nil, options, http.MethodPost, "/v1/flows/%s/drain", id)
}

// ArchiveFlow stops enrolling and ends all active enrollments.
func (c *Client) ArchiveFlow(ctx context.Context, id string, options ...CallOption) (Flow, error) {
	return c.flow(ctx, nil, options, http.MethodPost, "/v1/flows/%s/archive", id)
}

// GetFlowHistory reads the actions on a flow.
func (c *Client) GetFlowHistory(ctx context.Context, id string, options ...CallOption) iter.Seq2[FlowLogLine, error] {
	return each[FlowLogLine](ctx, c, nil, options, "/v1/flows/%s/history", id)
}

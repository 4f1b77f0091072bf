package client

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"net/http"
	"time"
)

// FlowVersionSummary is a version without its definition.
type FlowVersionSummary struct {
	FlowID      string     `json:"flow_id"`
	Version     int        `json:"version"`
	Status      string     `json:"status"` // draft, published, live
	Revision    int        `json:"revision"`
	CreatedAt   time.Time  `json:"created_at"`
	UpdatedAt   time.Time  `json:"updated_at"`
	PublishedAt *time.Time `json:"published_at"`
}

// FlowVersion is a definition of a flow. It never changes after it was published.
type FlowVersion struct {
	FlowVersionSummary
	Definition json.RawMessage `json:"definition"`

	ETag string `json:"-"` // for IfMatch of UpdateFlowVersion and DeleteFlowVersion
}

// InFlight decides about active enrollments in other versions.
type InFlight struct {
	Mode string             `json:"mode,omitempty"` // stay (default), move or exit
	Map  map[string]*string `json:"map,omitzero"`   // move: node of an old version -> node of the new one, nil: exit
}

// FlowValidation is the result of a check of a version.
type FlowValidation struct {
	Valid    bool     `json:"valid"`
	Errors   []Fault  `json:"errors"` // with pointers into the definition
	Warnings []string `json:"warnings"`
	Columns  []string `json:"columns"` // of the profile, read by the version

	ETag string `json:"-"` // as of a FlowPlan
}

// FlowPlan is what publishing a version would change.
type FlowPlan struct {
	Version     int           `json:"version"`
	LiveVersion *int          `json:"live_version"`
	InFlight    InFlight      `json:"in_flight"`
	Nodes       []PlannedNode `json:"nodes"`    // 1,000 at most, stranded and larger ones first
	Stranded    int64         `json:"stranded"` // if above 0, publishing with move is refused
	Timers      []TimerChange `json:"timers"`
	Changes     []FlowChange  `json:"changes"`
	Enrolls     *int64        `json:"enrolls"`                // by the first poll of the audience; nil: unknown
	Unknown     *string       `json:"enrolls_unknown_reason"` // why

	NodesLeftOut  int `json:"nodes_left_out"`
	TimersLeftOut int `json:"timers_left_out"`

	ETag string `json:"-"` // of the flow, templates and audience: PublishFlowVersion with IfMatch of it publishes what was planned, or nothing
}

// PlannedNode is the number of enrollments on a node, with their action.
type PlannedNode struct {
	Version int     `json:"version"`
	Node    string  `json:"node"` // empty: enrolled, and not yet on the first node
	Type    string  `json:"type"`
	Waiting int64   `json:"waiting"`
	Due     int64   `json:"due"`
	Action  string  `json:"action"` // stay, move, exit, stranded
	To      *string `json:"to"`
}

// TimerChange is a wait that publishing would change.
type TimerChange struct {
	Version int     `json:"version"` // in which they wait
	Node    string  `json:"node"`
	To      string  `json:"to"`
	Waiting int64   `json:"waiting"`
	Change  string  `json:"change"` // kept, shifted, restarted
	Seconds float64 `json:"seconds"`
}

// FlowChange is one difference between two definitions.
type FlowChange struct {
	Pointer string          `json:"pointer"`
	Op      string          `json:"op"` // add, remove, replace
	From    json.RawMessage `json:"from"`
	To      json.RawMessage `json:"to"`
}

// FlowDiff is the difference of two versions.
type FlowDiff struct {
	FromVersion int          `json:"from_version"`
	ToVersion   int          `json:"to_version"`
	Changes     []FlowChange `json:"changes"`
}

type versionBody struct {
	Definition json.RawMessage `json:"definition"`
}

type inFlightBody struct {
	InFlight InFlight `json:"in_flight"`
}

// version sends a request whose answer is a version with its ETag.
func (c *Client) version(ctx context.Context, body any, options []CallOption, method, path string, parts ...any) (FlowVersion, error) {
	v, etag, err := tagged[FlowVersion](ctx, c, body, options, method, path, parts...)
	v.ETag = etag
	return v, err
}

// FlowVersionFilter filters a list. An empty status is not used.
type FlowVersionFilter struct{ Status string } // draft, published, live

// ListFlowVersions reads a flow's versions without their definitions.
func (c *Client) ListFlowVersions(ctx context.Context, flow string, f FlowVersionFilter,
	options ...CallOption) iter.Seq2[FlowVersionSummary, error] {
	fill := func(r *request) { r.set("status", f.Status) }
	return each[FlowVersionSummary](ctx, c, fill, options, "/v1/flows/%s/versions", flow)
}

// CreateFlowVersion creates the next version, a draft. definition is JSON.
func (c *Client) CreateFlowVersion(ctx context.Context, flow string, definition json.RawMessage,
	options ...CallOption) (FlowVersion, error) {
	return c.version(ctx, versionBody{definition}, options, http.MethodPost, "/v1/flows/%s/versions", flow)
}

// GetFlowVersion reads a version.
func (c *Client) GetFlowVersion(ctx context.Context, flow string, n int, options ...CallOption) (FlowVersion, error) {
	return c.version(ctx, nil, options, http.MethodGet, "/v1/flows/%s/versions/%s", flow, n)
}

// UpdateFlowVersion replaces a draft. definition is JSON.
func (c *Client) UpdateFlowVersion(ctx context.Context, flow string, n int, definition json.RawMessage,
	options ...CallOption) (FlowVersion, error) {
	return c.version(ctx, versionBody{definition}, options, http.MethodPut, "/v1/flows/%s/versions/%s", flow, n)
}

// DeleteFlowVersion deletes a draft.
func (c *Client) DeleteFlowVersion(ctx context.Context, flow string, n int, options ...CallOption) error {
	_, err := call[struct{}](ctx, c, nil, options, http.MethodDelete, "/v1/flows/%s/versions/%s", flow, n)
	return err
}

// ValidateFlowVersion finds every fault of a version.
func (c *Client) ValidateFlowVersion(ctx context.Context, flow string, n int, options ...CallOption) (FlowValidation, error) {
	found, etag, err := tagged[FlowValidation](ctx, c, nil, options, http.MethodGet, "/v1/flows/%s/versions/%s/validate", flow, n)
	found.ETag = etag
	return found, err
}

// PlanFlowVersion answers what publishing a version would do. Nothing is kept.
func (c *Client) PlanFlowVersion(ctx context.Context, flow string, n int, in InFlight, options ...CallOption) (FlowPlan, error) {
	plan, etag, err := tagged[FlowPlan](ctx, c, inFlightBody{in}, options, http.MethodPost, "/v1/flows/%s/versions/%s/plan", flow, n)
	plan.ETag = etag
	return plan, err
}

// PublishFlowVersion makes a version the one that new enrollments follow. With
// IfMatch of the flow's ETag it is refused when the flow or one of its drafts has changed
// since; with that of a plan also when a template or the audience has.
func (c *Client) PublishFlowVersion(ctx context.Context, flow string, n int, in InFlight, options ...CallOption) (Flow, error) {
	r, err := newRequest(http.MethodPost, "/v1/flows/%s/versions/%s/publish", flow, n)
	if err == nil {
		err = r.with(nil, options)
	}
	if err == nil && r.query.Has("dry_run") {
		err = errors.New("lemma: PlanFlowVersion answers what publishing would do")
	}
	if err != nil {
		return Flow{}, err
	}
	return c.flow(ctx, inFlightBody{in}, options, http.MethodPost, "/v1/flows/%s/versions/%s/publish", flow, n)
}

// Rollback names the version to go back to.
type Rollback struct {
	ToVersion int      `json:"to_version,omitempty"` // 0: the one that was live before
	InFlight  InFlight `json:"in_flight"`
}

// RollbackFlow goes back to a version that was published before.
func (c *Client) RollbackFlow(ctx context.Context, flow string, back Rollback, options ...CallOption) (Flow, error) {
	return c.flow(ctx, back, options, http.MethodPost, "/v1/flows/%s/rollback", flow)
}

// DiffFlowVersions compares two versions. 0 is what the server takes then: to
// the newest, from the live one.
func (c *Client) DiffFlowVersions(ctx context.Context, flow string, from, to int, options ...CallOption) (FlowDiff, error) {
	between := func(r *request) { r.setNumber("from", from); r.setNumber("to", to) }
	return call[FlowDiff](ctx, c, nil, append([]CallOption{between}, options...), http.MethodGet, "/v1/flows/%s/diff", flow)
}

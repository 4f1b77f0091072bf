package client

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"time"
)

// FlowCounts is the funnel of one version.
type FlowCounts struct {
	Version      int              `json:"version"`
	Enrolled     int64            `json:"enrolled"`
	Active       int64            `json:"active"`
	Completed    int64            `json:"completed"`
	Exited       int64            `json:"exited"`
	Refused      int64            `json:"refused"` // when the profile was looked at
	ExitReasons  map[string]int64 `json:"exit_reasons"`
	Goals        int64            `json:"goals"`
	Trouble      map[string]int64 `json:"trouble"`       // who is due and cannot go on, by why
	Nodes        []NodeCount      `json:"nodes"`         // in the order of the graph
	Refusals     map[string]int64 `json:"refusals"`      // of triggers, by reason
	AudiencePoll *AudiencePoll    `json:"audience_poll"` // nil: the flow does not look at its audience
}

// AudiencePoll is how it goes with looking at the audience.
type AudiencePoll struct {
	LastAt    *time.Time       `json:"last_at"` // when the last look that read all of it began; nil: none has yet
	RowsRead  int64            `json:"rows_read"`
	Enrolled  int64            `json:"enrolled"`
	Refused   map[string]int64 `json:"refused"`    // by reason; invalid_key: rows without a usable profile key
	Failures  int              `json:"failures"`   // looks in a row, since then, that could not read it
	LastError *string          `json:"last_error"` // why: a code and a sentence
	NextAt    *time.Time       `json:"next_at"`    // nil: the flow is not live
}

// NodeCount is how many stand on a node, and how many passed it.
type NodeCount struct {
	Node     string           `json:"node"` // empty: enrolled, and not yet on the first node
	Type     string           `json:"type"`
	Standing int64            `json:"standing"`
	Due      int64            `json:"due"`
	Troubled int64            `json:"troubled"` // of these: who cannot go on
	Passed   map[string]int64 `json:"passed"`   // by what happened, such as sent and skipped
	Messages map[string]int64 `json:"messages"` // send: what became of what it wrote; nil for other nodes
	Ways     map[string]int64 `json:"ways"`     // branch, split and webhook: how many went where; nil for other nodes
}

// CountFlow counts who is where in a version; 0 is the live one, or where there
// is none the newest.
func (c *Client) CountFlow(ctx context.Context, flow string, version int, options ...CallOption) (FlowCounts, error) {
	of := func(r *request) { r.setNumber("version", version) }
	return call[FlowCounts](ctx, c, nil, append([]CallOption{of}, options...), http.MethodGet, "/v1/flows/%s/counts", flow)
}

// Refusal is a trigger that enrolled nobody.
type Refusal struct {
	ProfileKey   string    `json:"profile_key"`
	Reason       string    `json:"reason"`
	Detail       *string   `json:"detail"`
	Source       string    `json:"source"`        // event, audience, direct
	EventID      *string   `json:"event_id"`      // the event that asked
	EnrollmentID *string   `json:"enrollment_id"` // the enrollment that stands in the way
	At           time.Time `json:"at"`
}

// RefusalFilter narrows a list; what is empty narrows nothing.
type RefusalFilter struct{ ProfileKey, Reason string }

// ListRefusals reads the triggers that enrolled nobody.
func (c *Client) ListRefusals(ctx context.Context, flow string, f RefusalFilter, options ...CallOption) iter.Seq2[Refusal, error] {
	fill := func(r *request) { r.set("profile_key", f.ProfileKey); r.set("reason", f.Reason) }
	return each[Refusal](ctx, c, fill, options, "/v1/flows/%s/refusals", flow)
}

// FlowExplanation is what Lemma knows of one person and one flow.
type FlowExplanation struct {
	Summary     string       `json:"summary"`
	Facts       []string     `json:"facts"`
	Enrollments []Enrollment `json:"enrollments"`
	Refusals    []Refusal    `json:"refusals"`
	Events      []Event      `json:"events"`
}

// ExplainFlow tells why somebody is, or is not, enrolled.
func (c *Client) ExplainFlow(ctx context.Context, flow, profileKey string, options ...CallOption) (FlowExplanation, error) {
	who := func(r *request) { r.set("profile_key", profileKey) }
	return call[FlowExplanation](ctx, c, nil, append([]CallOption{who}, options...), http.MethodGet, "/v1/flows/%s/explain", flow)
}

// Simulation is whom to walk through a version, and what happens meanwhile.
type Simulation struct {
	ProfileKey string            `json:"profile_key"`
	Trigger    *SimulatedTrigger `json:"trigger,omitempty"`  // nil: a direct enrollment, or the audience's where a version has no other triggers
	At         *time.Time        `json:"at,omitempty"`       // when it enrolls; nil: now
	Events     []SimulatedEvent  `json:"events,omitempty"`   // what the person does later
	Webhooks   map[string]int    `json:"webhooks,omitempty"` // node -> status that it is answered with, 200 to 599, or 0: given up
}

// SimulatedTrigger is what enrolls somebody in a simulation.
type SimulatedTrigger struct {
	Type       string          `json:"type,omitempty"` // event, audience or direct; without it an event if there is one, else direct
	Event      string          `json:"event,omitempty"`
	Properties json.RawMessage `json:"properties,omitempty"` // an object
	ID         string          `json:"id,omitempty"`
	OccurredAt *time.Time      `json:"occurred_at,omitempty"`
}

// SimulatedEvent is an event that nobody records.
type SimulatedEvent struct {
	Event      string          `json:"event,omitempty"`
	Properties json.RawMessage `json:"properties,omitempty"` // an object
	ID         string          `json:"id,omitempty"`
	OccurredAt *time.Time      `json:"occurred_at,omitempty"`
}

// Simulated is how somebody would fare.
type Simulated struct {
	Enrolled   bool            `json:"enrolled"`
	Reason     *string         `json:"reason"` // why not
	Path       []SimulatedStep `json:"path"`
	Status     string          `json:"status"`
	ExitReason *string         `json:"exit_reason"`
}

// SimulatedStep is one thing that would happen.
type SimulatedStep struct {
	At      time.Time         `json:"at"`
	Node    string            `json:"node"`
	Type    string            `json:"type"`
	Event   string            `json:"event"`
	Until   *time.Time        `json:"until"` // a wait: until when
	Next    *string           `json:"next"`
	Data    map[string]any    `json:"data"` // numbers are json.Number
	Message *SimulatedMessage `json:"message"`
	Webhook *SimulatedWebhook `json:"webhook"`
}

// SimulatedWebhook is what would be posted.
type SimulatedWebhook struct {
	EndpointID string          `json:"endpoint_id"`
	Body       json.RawMessage `json:"body"`
}

// SimulatedMessage is what would be sent.
type SimulatedMessage struct {
	Address string            `json:"address"`
	Subject string            `json:"subject"`
	HTML    string            `json:"html"`
	Text    string            `json:"text"`
	Headers map[string]string `json:"headers"` // as they are rendered
	Skipped *string           `json:"skipped"` // the reason for which it would not be sent
	Error   *string           `json:"error"`   // why it cannot be rendered
}

// SimulateFlowVersion walks one real profile through a version under a moved
// clock, without a side effect.
func (c *Client) SimulateFlowVersion(ctx context.Context, flow string, n int, s Simulation, options ...CallOption) (Simulated, error) {
	return call[Simulated](ctx, c, s, options, http.MethodPost, "/v1/flows/%s/versions/%s/simulate", flow, n)
}

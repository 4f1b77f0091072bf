package client

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"time"
)

// FlowCounts are the counts of one version.
type FlowCounts struct {
	Version      int              `json:"version"`
	Enrolled     int64            `json:"enrolled"`
	Active       int64            `json:"active"`
	Completed    int64            `json:"completed"`
	Exited       int64            `json:"exited"`
	Refused      int64            `json:"refused"` // when the profile was read
	ExitedBy     map[string]int64 `json:"exited_by"`
	Goals        int64            `json:"goals"`
	Blocked      int64            `json:"blocked"`       // due, and cannot advance
	BlockedBy    map[string]int64 `json:"blocked_by"`    // by blocked_reason
	Nodes        []NodeCount      `json:"nodes"`         // in the order of the graph
	RefusalsBy   map[string]int64 `json:"refusals_by"`   // of triggers, by reason
	AudiencePoll *AudiencePoll    `json:"audience_poll"` // nil: the flow does not poll its audience

	MessagesBlocked *MessagesBlocked `json:"messages_blocked"` // nil: no message waits for its audience
}

// MessagesBlocked is why messages that waited for long are not sent: their profiles must be
// read from the audience again, which fails.
type MessagesBlocked struct {
	BlockedReason string    `json:"blocked_reason"`
	Detail        string    `json:"detail"`
	Since         time.Time `json:"since"`
}

// AudiencePoll is the state of the polls of an audience.
type AudiencePoll struct {
	LastPollAt *time.Time       `json:"last_poll_at"` // when the last complete poll began; nil: none yet
	RowsRead   int64            `json:"rows_read"`
	Enrolled   int64            `json:"enrolled"`
	RefusedBy  map[string]int64 `json:"refused_by"`   // by reason; invalid_key: rows without a usable profile key
	Failures   int              `json:"failures"`     // failed polls since then
	LastError  *string          `json:"last_error"`   // a code and a detail
	NextPollAt *time.Time       `json:"next_poll_at"` // nil: the flow is not live
}

// NodeCount are the counts of a node.
type NodeCount struct {
	Node          string              `json:"node"` // empty: enrolled, and not yet on the first node
	Type          string              `json:"type"`
	Current       int64               `json:"current"`
	Due           int64               `json:"due"`
	Blocked       int64               `json:"blocked"`       // of these: due, and cannot go on
	Processed     map[string]int64    `json:"processed"`     // by event, such as sent and skipped
	Notifications *NotificationCounts `json:"notifications"` // send: its notifications; nil for other nodes
	ByPath        map[string]int64    `json:"by_path"`       // branch, split and webhook; nil for other nodes
}

// CountFlow counts the enrollments of a version; 0 is the live one, or else the newest.
func (c *Client) CountFlow(ctx context.Context, flow string, version int, options ...CallOption) (FlowCounts, error) {
	of := func(r *request) { r.setNumber("version", version) }
	return call[FlowCounts](ctx, c, nil, append([]CallOption{of}, options...), http.MethodGet, "/v1/flows/%s/counts", flow)
}

// Refusal is a trigger that was refused.
type Refusal struct {
	ProfileKey   string    `json:"profile_key"`
	Reason       string    `json:"reason"`
	Detail       *string   `json:"detail"`
	TriggerType  string    `json:"trigger_type"`  // event, audience, direct
	EventID      *string   `json:"event_id"`      // of an event trigger
	EnrollmentID *string   `json:"enrollment_id"` // the conflicting enrollment
	CreatedAt    time.Time `json:"created_at"`
}

// RefusalFilter filters a list. Empty fields are not used.
type RefusalFilter struct{ ProfileKey, Reason string }

// ListRefusals reads refused triggers.
func (c *Client) ListRefusals(ctx context.Context, flow string, f RefusalFilter, options ...CallOption) iter.Seq2[Refusal, error] {
	fill := func(r *request) { r.set("profile_key", f.ProfileKey); r.set("reason", f.Reason) }
	return each[Refusal](ctx, c, fill, options, "/v1/flows/%s/refusals", flow)
}

// FlowExplanation is why a profile is, or is not, enrolled in a flow.
type FlowExplanation struct {
	Summary     string       `json:"summary"`
	Facts       []string     `json:"facts"`
	Enrollments []Enrollment `json:"enrollments"`
	Refusals    []Refusal    `json:"refusals"`
	Events      []Event      `json:"events"`
}

// ExplainFlow explains why a profile is, or is not, enrolled.
func (c *Client) ExplainFlow(ctx context.Context, flow, profileKey string, options ...CallOption) (FlowExplanation, error) {
	profile := func(r *request) { r.set("profile_key", profileKey) }
	return call[FlowExplanation](ctx, c, nil, append([]CallOption{profile}, options...), http.MethodGet, "/v1/flows/%s/explain", flow)
}

// Simulation is a profile to simulate a version for, with later events and answers.
type Simulation struct {
	ProfileKey string            `json:"profile_key"`
	Trigger    *SimulatedTrigger `json:"trigger,omitempty"`  // nil: direct, or audience if the version has no other triggers
	At         *time.Time        `json:"at,omitempty"`       // when it enrolls; nil: now
	Events     []SimulatedEvent  `json:"events,omitempty"`   // later events of the profile
	Webhooks   map[string]int    `json:"webhooks,omitempty"` // node -> status of the answer, 200 to 599; 0: delivery failed
}

// SimulatedTrigger is the trigger of a simulation.
type SimulatedTrigger struct {
	Type string `json:"type,omitempty"` // event, audience or direct; empty: event if Event is set, else direct
	SimulatedEvent
}

// SimulatedEvent is an event that is not recorded.
type SimulatedEvent struct {
	Event      string          `json:"event,omitempty"`
	Properties json.RawMessage `json:"properties,omitempty"` // an object
	SourceID   string          `json:"source_id,omitempty"`
	OccurredAt *time.Time      `json:"occurred_at,omitempty"`
}

// Simulated is the result of a simulation.
type Simulated struct {
	Enrolled   bool            `json:"enrolled"`
	Reason     *string         `json:"reason"` // of the refusal
	Path       []SimulatedStep `json:"path"`
	Status     string          `json:"status"`
	ExitReason *string         `json:"exit_reason"`
}

// SimulatedStep is a step that would be executed.
type SimulatedStep struct {
	At      time.Time         `json:"at"`
	Node    string            `json:"node"`
	Type    string            `json:"type"`
	Event   string            `json:"event"`
	Until   *time.Time        `json:"until"` // the end of a wait
	Next    *string           `json:"next"`
	Data    map[string]any    `json:"data"` // numbers are json.Number
	Message *SimulatedMessage `json:"message"`
	Webhook *SimulatedWebhook `json:"webhook"`
}

// SimulatedWebhook is the request that would be sent.
type SimulatedWebhook struct {
	EndpointID string          `json:"endpoint_id"`
	Body       json.RawMessage `json:"body"`
	Error      *string         `json:"error"` // why the body is not shown
}

// SimulatedMessage is the message that would be sent. Fields of other channels are nil.
type SimulatedMessage struct {
	Address   string             `json:"address"`
	Addresses int                `json:"addresses"` // number of messages: of a push, one for each token
	Channel   string             `json:"channel"`
	Subject   *string            `json:"subject,omitempty"`
	HTML      *string            `json:"html,omitempty"`
	Text      *string            `json:"text,omitempty"`
	Segments  *SMSSegments       `json:"segments,omitempty"`
	Title     *string            `json:"title,omitempty"`
	Body      *string            `json:"body,omitempty"`
	Link      *string            `json:"link,omitempty"`
	Data      *map[string]string `json:"data,omitempty"`
	Headers   map[string]string  `json:"headers"` // rendered
	Skipped   *string            `json:"skipped"` // why it would not be sent
	Error     *string            `json:"error"`   // why it cannot be rendered
}

// SMSSegments is how an SMS is sent.
type SMSSegments struct {
	Encoding   string `json:"encoding"`    // gsm7 or ucs2
	Characters int    `json:"characters"`  // septets, or UTF-16 code units
	Count      int    `json:"count"`       // of segments
	PerSegment int    `json:"per_segment"` // characters
}

// SimulateFlowVersion executes a version for one profile of the audience under a simulated
// clock, without side effects.
func (c *Client) SimulateFlowVersion(ctx context.Context, flow string, n int, s Simulation, options ...CallOption) (Simulated, error) {
	return call[Simulated](ctx, c, s, options, http.MethodPost, "/v1/flows/%s/versions/%s/simulate", flow, n)
}

// NotificationCounts are numbers of notifications by status. Total is their sum.
type NotificationCounts struct {
	Total      int64 `json:"total"`
	Sent       int64 `json:"sent"`
	Failed     int64 `json:"failed"`
	Skipped    int64 `json:"skipped"`
	Orphaned   int64 `json:"orphaned"`
	Cancelled  int64 `json:"cancelled"`
	Pending    int64 `json:"pending"`
	Processing int64 `json:"processing"`

	Deliveries DeliveryCounts `json:"deliveries"`
	Engagement Engagement     `json:"engagement"`
}

// Engagement is what recipients did with messages whose opens and clicks are tracked.
// What machines did is counted apart.
type Engagement struct {
	Opens         int64 `json:"opens"`
	UniqueOpens   int64 `json:"unique_opens"` // notifications that were opened
	Clicks        int64 `json:"clicks"`
	UniqueClicks  int64 `json:"unique_clicks"` // notifications in which a link was clicked
	MachineOpens  int64 `json:"machine_opens"`
	MachineClicks int64 `json:"machine_clicks"`
	Conversions   int64 `json:"conversions"`  // notifications after which the conversion's event came in time
	Unsubscribes  int64 `json:"unsubscribes"` // notifications by which recipients unsubscribed
}

// DeliveryCounts are numbers of notifications by what carriers reported. A notification
// without a report is in none of them.
type DeliveryCounts struct {
	Delivered   int64 `json:"delivered"`
	Delayed     int64 `json:"delayed"`
	Bounced     int64 `json:"bounced"`
	Complained  int64 `json:"complained"`
	Rejected    int64 `json:"rejected"`
	Undelivered int64 `json:"undelivered"`
}

package client

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"time"
)

// Enrollment is one profile's way through one version of a flow.
type Enrollment struct {
	ID            string     `json:"id"`
	FlowID        string     `json:"flow_id"`
	Version       int        `json:"version"`
	ProfileKey    string     `json:"profile_key"`
	Status        string     `json:"status"` // active, waiting, completed, exited, refused
	ExitReason    *string    `json:"exit_reason"`
	Node          *string    `json:"node"` // where it stands or ended; nil: before the first
	Step          int        `json:"step"`
	ResumeAt      *time.Time `json:"resume_at"`      // when it is due
	Awaits        *string    `json:"awaits"`         // the event that it waits for; nil once it has come or the time has passed
	BlockedReason *string    `json:"blocked_reason"` // why it cannot go on, though it is due
	BlockedSince  *time.Time `json:"blocked_since"`
	Failures      int        `json:"failures"`
	TriggerType   string     `json:"trigger_type"` // event, audience, direct
	CreatedAt     time.Time  `json:"created_at"`
	EndedAt       *time.Time `json:"ended_at"`
}

// EnrollmentFilter narrows a list; what is empty narrows nothing.
type EnrollmentFilter struct {
	FlowID        string
	ProfileKey    string
	Status        string // active covers waiting
	Node          string
	Version       int
	BlockedReason string // why they cannot go on; any: whatever it is
}

// EnrollmentHistory is an enrollment with all that happened to it.
type EnrollmentHistory struct {
	Enrollment Enrollment       `json:"enrollment"`
	Steps      []EnrollmentStep `json:"steps"`
}

// EnrollmentStep is one thing that happened to an enrollment.
type EnrollmentStep struct {
	Step    int            `json:"step"`
	Version int            `json:"version"`
	Node    *string        `json:"node"`
	Event   string         `json:"event"` // enrolled, sent, resumed, branched and so on
	Data    map[string]any `json:"data"`  // what decided it; numbers are json.Number
	At      time.Time      `json:"at"`

	// What the step wrote, as of now.
	Notification   *StepNotification `json:"notification"`
	WebhookMessage *WebhookMessage   `json:"webhook_message"`
}

// StepNotification is the notification that a step wrote.
type StepNotification struct {
	ID     string  `json:"id"`
	Status *string `json:"status"` // nil: it is not kept any more; pending, processing, sent, failed, orphaned, skipped, cancelled
	Reason *string `json:"reason"`
}

// WebhookMessage is a webhook's message and its delivery.
type WebhookMessage struct {
	ID         string     `json:"id"`     // the webhook-id that it goes out under
	Status     *string    `json:"status"` // pending, delivered, failed; nil: it is not kept any more
	Attempts   int        `json:"attempts"`
	StatusCode *int       `json:"status_code"` // of the last answer
	Reason     *string    `json:"reason"`      // why the last call did not deliver it
	CalledAt   *time.Time `json:"called_at"`
	NextAt     *time.Time `json:"next_at"` // pending: when it is called next; nil while it is being called
}

// NewEnrollment enrolls one profile.
type NewEnrollment struct {
	ProfileKey string          `json:"profile_key"`
	Properties json.RawMessage `json:"properties,omitempty"` // an object: the trigger's
	SourceID   string          `json:"source_id,omitempty"`  // the caller's own: requested twice under one, it counts once
	OccurredAt *time.Time      `json:"occurred_at,omitempty"`
}

// EnrollResult is what a trigger did in one flow.
type EnrollResult struct {
	FlowID       string  `json:"flow_id"`
	Status       string  `json:"status"` // enrolled, refused
	Reason       *string `json:"reason"`
	Detail       *string `json:"detail"`
	EnrollmentID *string `json:"enrollment_id"` // the new one, or the one that stands in the way
}

// EnrollAnswer is what came of asking to enroll one profile. With DryRun nothing
// was kept, and a profile that would be enrolled has no EnrollmentID.
type EnrollAnswer struct {
	EnrollResult
	SourceID *string `json:"source_id"`
	DryRun   bool    `json:"dry_run"`
}

// EnrollResults are what came of many, each at its index.
type EnrollResults struct {
	Results []EnrollItem `json:"results"`
	Counts  EnrollCounts `json:"counts"`
	DryRun  bool         `json:"dry_run"` // nothing was kept
}

// EnrollCounts are how many items have which status.
type EnrollCounts struct {
	Enrolled int `json:"enrolled"`
	Refused  int `json:"refused"`
	Invalid  int `json:"invalid"`
}

// EnrollItem is what came of one of many.
type EnrollItem struct {
	Index        int     `json:"index"`
	SourceID     *string `json:"source_id"`
	Status       string  `json:"status"` // enrolled, refused, invalid
	Reason       *string `json:"reason"`
	Detail       *string `json:"detail"`
	EnrollmentID *string `json:"enrollment_id"`
	Errors       []Fault `json:"errors"`
}

// Enroll enrolls one profile, whatever the flow's triggers. A refusal is
// no error: the result has the reason.
func (c *Client) Enroll(ctx context.Context, flow string, e NewEnrollment, options ...CallOption) (EnrollAnswer, error) {
	return call[EnrollAnswer](ctx, c, e, options, http.MethodPost, "/v1/flows/%s/enrollments", flow)
}

// EnrollBulk enrolls up to 1,000. A broken one is invalid, and the others are enrolled.
func (c *Client) EnrollBulk(ctx context.Context, flow string, all []NewEnrollment, options ...CallOption) (EnrollResults, error) {
	body := struct {
		Enrollments []NewEnrollment `json:"enrollments"`
	}{all}
	return call[EnrollResults](ctx, c, body, options, http.MethodPost, "/v1/flows/%s/enrollments/bulk", flow)
}

// ListEnrollments reads the enrollments of all flows.
func (c *Client) ListEnrollments(ctx context.Context, f EnrollmentFilter, options ...CallOption) iter.Seq2[Enrollment, error] {
	return each[Enrollment](ctx, c, f.fill, options, "/v1/enrollments")
}

// ListEnrollmentsOfFlow reads the enrollments of one flow; the filter names none.
func (c *Client) ListEnrollmentsOfFlow(ctx context.Context, flow string, f EnrollmentFilter, options ...CallOption) iter.Seq2[Enrollment, error] {
	return each[Enrollment](ctx, c, f.fill, options, "/v1/flows/%s/enrollments", flow)
}

func (f EnrollmentFilter) fill(r *request) {
	r.set("flow_id", f.FlowID)
	r.set("profile_key", f.ProfileKey)
	r.set("status", f.Status)
	r.set("node", f.Node)
	r.setNumber("version", f.Version)
	r.set("blocked_reason", f.BlockedReason)
}

// GetEnrollment reads an enrollment.
func (c *Client) GetEnrollment(ctx context.Context, id string, options ...CallOption) (Enrollment, error) {
	return call[Enrollment](ctx, c, nil, options, http.MethodGet, "/v1/enrollments/%s", id)
}

// GetEnrollmentHistory reads every step of an enrollment.
func (c *Client) GetEnrollmentHistory(ctx context.Context, id string, options ...CallOption) (EnrollmentHistory, error) {
	return call[EnrollmentHistory](ctx, c, nil, options, http.MethodGet, "/v1/enrollments/%s/history", id)
}

// ExitEnrollment ends an enrollment on its node. The note is kept in the history.
func (c *Client) ExitEnrollment(ctx context.Context, id, note string, options ...CallOption) (Enrollment, error) {
	body := struct {
		Note string `json:"note,omitempty"`
	}{note}
	return call[Enrollment](ctx, c, body, options, http.MethodPost, "/v1/enrollments/%s/exit", id)
}

// MoveEnrollment moves an enrollment to a node of a published version; 0 is the
// version that the enrollment is in.
func (c *Client) MoveEnrollment(ctx context.Context, id string, version int, node string, options ...CallOption) (Enrollment, error) {
	body := struct {
		Version int    `json:"version,omitempty"`
		Node    string `json:"node"`
	}{version, node}
	return call[Enrollment](ctx, c, body, options, http.MethodPost, "/v1/enrollments/%s/move", id)
}

// Erased is how many of each were forgotten.
type Erased struct {
	Enrollments   int64 `json:"enrollments"`
	Exited        int64 `json:"exited"`
	Events        int64 `json:"events"`
	Refusals      int64 `json:"refusals"`
	Notifications int64 `json:"notifications"`
	Processing    int64 `json:"processing"` // being called: request it again when they have ended
}

// EraseProfile erases a profile.
func (c *Client) EraseProfile(ctx context.Context, profileKey string, options ...CallOption) (Erased, error) {
	body := struct {
		ProfileKey string `json:"profile_key"`
	}{profileKey}
	return call[Erased](ctx, c, body, options, http.MethodPost, "/v1/profiles/erase")
}

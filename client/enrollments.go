package client

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"time"
)

// Enrollment is the run of a profile through a version of a flow.
type Enrollment struct {
	ID            string     `json:"id"`
	FlowID        string     `json:"flow_id"`
	Version       int        `json:"version"`
	ProfileKey    string     `json:"profile_key"`
	Status        string     `json:"status"` // active, waiting, completed, exited, refused
	ExitReason    *string    `json:"exit_reason"`
	Node          *string    `json:"node"` // the current or last node; nil: before the first
	Step          int        `json:"step"`
	ResumeAt      *time.Time `json:"resume_at"`      // when it becomes due
	Awaits        *string    `json:"awaits"`         // the event that it waits for; nil after the event or the timeout
	BlockedReason *string    `json:"blocked_reason"` // why it is due and cannot advance
	BlockedSince  *time.Time `json:"blocked_since"`
	Failures      int        `json:"failures"`
	TriggerType   string     `json:"trigger_type"` // event, audience, direct
	CreatedAt     time.Time  `json:"created_at"`
	EndedAt       *time.Time `json:"ended_at"`
}

// EnrollmentFilter filters a list. Empty fields are not used.
type EnrollmentFilter struct {
	FlowID        string
	ProfileKey    string
	Status        string // active covers waiting
	Node          string
	Version       int
	BlockedReason string // a reason, or any
}

// EnrollmentHistory is an enrollment with its steps.
type EnrollmentHistory struct {
	Enrollment Enrollment       `json:"enrollment"`
	Steps      []EnrollmentStep `json:"steps"`
	Truncated  bool             `json:"truncated"` // further steps follow
}

// EnrollmentStep is a step of an enrollment.
type EnrollmentStep struct {
	Step    int            `json:"step"`
	Version int            `json:"version"`
	Node    *string        `json:"node"`
	Event   string         `json:"event"` // enrolled, sent, resumed, branched and so on
	Data    map[string]any `json:"data"`  // details; numbers are json.Number
	At      time.Time      `json:"at"`

	// The current state of what the step wrote.
	Notification   *StepNotification  `json:"notification"`
	Others         []StepNotification `json:"other_notifications"` // to other addresses of the profile, such as other devices
	WebhookMessage *WebhookMessage    `json:"webhook_message"`
}

// StepNotification is the notification that a step wrote.
type StepNotification struct {
	ID     string  `json:"id"`
	Status *string `json:"status"` // nil: it was deleted; pending, processing, sent, failed, orphaned, skipped, cancelled
	Reason *string `json:"reason"`
}

// WebhookMessage is a message to an endpoint with its delivery.
type WebhookMessage struct {
	ID         string     `json:"id"`          // the webhook-id header
	Status     *string    `json:"status"`      // pending, delivered, failed; nil: it was deleted
	Attempts   *int       `json:"attempts"`    // calls that were begun; nil: it was deleted
	StatusCode *int       `json:"status_code"` // of the last answer
	Reason     *string    `json:"reason"`      // of the failure of the last call
	CalledAt   *time.Time `json:"called_at"`
	NextAt     *time.Time `json:"next_at"` // pending: the time of the next call; nil during a call
}

// NewEnrollment enrolls one profile.
type NewEnrollment struct {
	ProfileKey string          `json:"profile_key"`
	Properties json.RawMessage `json:"properties,omitempty"` // an object
	SourceID   string          `json:"source_id,omitempty"`  // the caller's id; a second request with the same id has no effect
	OccurredAt *time.Time      `json:"occurred_at,omitempty"`
}

// EnrollResult is the result of a trigger in one flow.
type EnrollResult struct {
	FlowID       string  `json:"flow_id"`
	Status       string  `json:"status"` // enrolled, refused
	Reason       *string `json:"reason"`
	Detail       *string `json:"detail"`
	EnrollmentID *string `json:"enrollment_id"` // the new one, or the conflicting one
}

// EnrollAnswer is the result of Enroll. With DryRun nothing was stored, and a profile that
// would be enrolled has no EnrollmentID.
type EnrollAnswer struct {
	EnrollResult
	SourceID *string `json:"source_id"`
	DryRun   bool    `json:"dry_run"`
}

// EnrollResults are the results of EnrollBulk, in the order of the request.
type EnrollResults struct {
	Results []EnrollItem `json:"results"`
	Counts  EnrollCounts `json:"counts"`
	DryRun  bool         `json:"dry_run"` // nothing was stored
}

// EnrollCounts are numbers of items by status.
type EnrollCounts struct {
	Enrolled int `json:"enrolled"`
	Refused  int `json:"refused"`
	Invalid  int `json:"invalid"`
}

// EnrollItem is the result of one item of EnrollBulk.
type EnrollItem struct {
	Index        int     `json:"index"`
	SourceID     *string `json:"source_id"`
	Status       string  `json:"status"` // enrolled, refused, invalid
	Reason       *string `json:"reason"`
	Detail       *string `json:"detail"`
	EnrollmentID *string `json:"enrollment_id"`
	Errors       []Fault `json:"errors"`
}

// Enroll enrolls one profile, whatever the flow's triggers are. A refusal is no error; the
// result has its reason.
func (c *Client) Enroll(ctx context.Context, flow string, e NewEnrollment, options ...CallOption) (EnrollAnswer, error) {
	return call[EnrollAnswer](ctx, c, e, options, http.MethodPost, "/v1/flows/%s/enrollments", flow)
}

// EnrollBulk enrolls up to 1,000 profiles. An item with faults is invalid, and the others
// are enrolled.
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

// ListEnrollmentsOfFlow reads the enrollments of one flow. The filter must name no flow.
func (c *Client) ListEnrollmentsOfFlow(ctx context.Context, flow string, f EnrollmentFilter,
	options ...CallOption) iter.Seq2[Enrollment, error] {
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

// GetEnrollmentHistory reads the steps of an enrollment. If they are truncated, AfterStep
// reads those that follow.
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

// MoveEnrollment moves an enrollment to a node of a published version; 0 is the version of
// the enrollment.
func (c *Client) MoveEnrollment(ctx context.Context, id string, version int, node string, options ...CallOption) (Enrollment, error) {
	body := struct {
		Version int    `json:"version,omitempty"`
		Node    string `json:"node"`
	}{version, node}
	return call[Enrollment](ctx, c, body, options, http.MethodPost, "/v1/enrollments/%s/move", id)
}

// Erased are the numbers of erased rows by kind.
type Erased struct {
	Enrollments   int64 `json:"enrollments"`
	Exited        int64 `json:"exited"`
	Events        int64 `json:"events"`
	Refusals      int64 `json:"refusals"`
	Notifications int64 `json:"notifications"`
	Processing    int64 `json:"processing"` // being sent: request the erasure again when they have ended
	More          bool  `json:"more"`       // the profile has more: request the erasure again
}

// EraseProfile erases a profile.
func (c *Client) EraseProfile(ctx context.Context, profileKey string, options ...CallOption) (Erased, error) {
	body := struct {
		ProfileKey string `json:"profile_key"`
	}{profileKey}
	return call[Erased](ctx, c, body, options, http.MethodPost, "/v1/profiles/erase")
}

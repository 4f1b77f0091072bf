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
	ID         string     `json:"id"`
	FlowID     string     `json:"flow_id"`
	Version    int        `json:"version"`
	ProfileKey string     `json:"profile_key"`
	Status     string     `json:"status"` // active, waiting, completed, exited, refused
	ExitReason *string    `json:"exit_reason"`
	Node       *string    `json:"node"` // where it stands or ended; nil: before the first
	Step       int        `json:"step"`
	ResumeAt   *time.Time `json:"resume_at"` // when it is due
	Awaits     *string    `json:"awaits"`    // the event that it waits for
	Trouble    *string    `json:"trouble"`   // what keeps it from going on
	Failures   int        `json:"failures"`
	DueSince   *time.Time `json:"due_since"` // with trouble: since when it has been due in vain
	Source     string     `json:"source"`    // event, audience, direct
	EnrolledAt time.Time  `json:"enrolled_at"`
	EndedAt    *time.Time `json:"ended_at"`
}

// EnrollmentFilter narrows a list; what is empty narrows nothing.
type EnrollmentFilter struct {
	FlowID     string
	ProfileKey string
	Status     string // active covers waiting
	Node       string
	Version    int
	Trouble    string // what keeps them from going on; any: whatever it is
}

// EnrollmentHistory is an enrollment with all that happened to it.
type EnrollmentHistory struct {
	Enrollment Enrollment       `json:"enrollment"`
	Steps      []EnrollmentStep `json:"steps"`
}

// EnrollmentStep is one thing that happened to an enrollment.
type EnrollmentStep struct {
	Step           int            `json:"step"`
	Version        int            `json:"version"`
	Node           *string        `json:"node"`
	Event          string         `json:"event"` // enrolled, sent, resumed, branched and so on
	Data           map[string]any `json:"data"`  // what decided it; numbers are json.Number
	At             time.Time      `json:"at"`
	NotificationID *string        `json:"notification_id"`

	// What became of what the step wrote, as of now.
	Notification *NotificationState `json:"notification"`
	Webhook      *WebhookFate       `json:"webhook"`
}

// NotificationState is where a notification stands.
type NotificationState struct {
	Status string  `json:"status"` // pending, processing, sent, failed, orphaned, skipped, cancelled
	Reason *string `json:"reason"`
}

// WebhookFate is what has become of a webhook's message.
type WebhookFate struct {
	MessageID string     `json:"message_id"` // the webhook-id that it goes out under
	State     *string    `json:"state"`      // pending, delivered, failed; nil: it is not kept any more
	Attempts  int        `json:"attempts"`
	Status    *int       `json:"status"` // of the last answer
	Reason    *string    `json:"reason"` // why the last call did not deliver it
	CalledAt  *time.Time `json:"called_at"`
	NextAt    *time.Time `json:"next_at"` // pending: when it is called next; nil while it is being called
}

// NewEnrollment asks for one profile.
type NewEnrollment struct {
	ProfileKey string          `json:"profile_key"`
	Properties json.RawMessage `json:"properties,omitempty"` // an object: the trigger's
	ID         string          `json:"id,omitempty"`         // asked twice under one id, it counts once
	OccurredAt *time.Time      `json:"occurred_at,omitempty"`
}

// EnrollResult is what a trigger did in one flow.
type EnrollResult struct {
	FlowID       string  `json:"flow_id"`
	Result       string  `json:"result"` // enrolled, refused
	Reason       *string `json:"reason"`
	Detail       *string `json:"detail"`
	EnrollmentID *string `json:"enrollment_id"` // the new one, or the one that stands in the way
}

// EnrollAnswer is what came of asking to enroll one profile. With DryRun nothing
// was kept, and somebody who would be enrolled has no EnrollmentID.
type EnrollAnswer struct {
	EnrollResult
	DryRun bool `json:"dry_run"`
}

// EnrollResults are what came of many, each at its index.
type EnrollResults struct {
	Results  []EnrollItem `json:"results"`
	Enrolled int          `json:"enrolled"`
	Refused  int          `json:"refused"`
	Invalid  int          `json:"invalid"`
	DryRun   bool         `json:"dry_run"` // nothing was kept
}

// EnrollItem is what came of one of many.
type EnrollItem struct {
	Index        int     `json:"index"`
	Result       string  `json:"result"` // enrolled, refused, invalid
	Reason       *string `json:"reason"`
	Detail       *string `json:"detail"`
	EnrollmentID *string `json:"enrollment_id"`
	Errors       []Fault `json:"errors"`
}

// Enroll enrolls one profile, whatever the flow's triggers. Who is not enrolled
// is no error: the result says why.
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

// ListEnrollments reads enrollments, newest first.
func (c *Client) ListEnrollments(ctx context.Context, f EnrollmentFilter, options ...CallOption) iter.Seq2[Enrollment, error] {
	fill := func(r *request) {
		r.set("flow_id", f.FlowID)
		r.set("profile_key", f.ProfileKey)
		r.set("status", f.Status)
		r.set("node", f.Node)
		r.setNumber("version", f.Version)
		r.set("trouble", f.Trouble)
	}
	return each[Enrollment](ctx, c, fill, options, "/v1/enrollments")
}

// GetEnrollment reads an enrollment.
func (c *Client) GetEnrollment(ctx context.Context, id string, options ...CallOption) (Enrollment, error) {
	return call[Enrollment](ctx, c, nil, options, http.MethodGet, "/v1/enrollments/%s", id)
}

// GetEnrollmentHistory reads every step of an enrollment.
func (c *Client) GetEnrollmentHistory(ctx context.Context, id string, options ...CallOption) (EnrollmentHistory, error) {
	return call[EnrollmentHistory](ctx, c, nil, options, http.MethodGet, "/v1/enrollments/%s/history", id)
}

// ExitEnrollment takes somebody out where they stand. The note is kept in the history.
func (c *Client) ExitEnrollment(ctx context.Context, id, note string, options ...CallOption) (Enrollment, error) {
	body := struct {
		Note string `json:"note,omitempty"`
	}{note}
	return call[Enrollment](ctx, c, body, options, http.MethodPost, "/v1/enrollments/%s/exit", id)
}

// MoveEnrollment puts somebody on a node of a published version; 0 is the
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
	InFlight      int64 `json:"in_flight"` // being sent: ask again when they have ended
}

// EraseProfile forgets a person.
func (c *Client) EraseProfile(ctx context.Context, profileKey string, options ...CallOption) (Erased, error) {
	body := struct {
		ProfileKey string `json:"profile_key"`
	}{profileKey}
	return call[Erased](ctx, c, body, options, http.MethodPost, "/v1/profiles/erase")
}

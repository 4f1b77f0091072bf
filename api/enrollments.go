package api

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/flows/enrollment"
	"lemma/flows/intake"
	"lemma/flows/query"
)

type enrollmentBody struct {
	ID         string     `json:"id"`
	FlowID     string     `json:"flow_id"`
	Version    int        `json:"version"`
	ProfileKey string     `json:"profile_key"`
	Status     string     `json:"status"`
	ExitReason *string    `json:"exit_reason"`
	Node       *string    `json:"node"`
	Step       int        `json:"step"`
	ResumeAt   *time.Time `json:"resume_at"`
	Awaits     *string    `json:"awaits"`
	Blocked    *string    `json:"blocked_reason"`
	BlockedAt  *time.Time `json:"blocked_since"`
	Failures   int        `json:"failures"`
	Trigger    string     `json:"trigger_type"`
	CreatedAt  time.Time  `json:"created_at"`
	EndedAt    *time.Time `json:"ended_at"`
}

func showEnrollment(e query.Enrollment) enrollmentBody {
	return enrollmentBody{ID: lemma.FormatID(lemma.PrefixEnrollment, e.ID), FlowID: lemma.FormatID(lemma.PrefixFlow, e.FlowID),
		Version: e.Version, ProfileKey: e.ProfileKey, Status: e.Status, ExitReason: orNull(e.ExitReason), Node: orNull(e.Node), Step: e.Step,
		ResumeAt: utc(e.ResumeAt), Awaits: orNull(e.Awaits), Blocked: orNull(e.BlockedReason), BlockedAt: utc(e.BlockedSince),
		Failures: e.Failures, Trigger: e.Source, CreatedAt: e.EnrolledAt.UTC(), EndedAt: utc(e.EndedAt)}
}

func (s *server) listEnrollments(ctx context.Context, c *call, _ none) (list[enrollmentBody], error) {
	flow, ok := c.filterID("flow_id", lemma.PrefixFlow)
	if !ok {
		return nothing[enrollmentBody](), nil
	}
	return s.enrollmentsOf(ctx, c, flow)
}

func (s *server) listEnrollmentsOfFlow(ctx context.Context, c *call, _ none) (list[enrollmentBody], error) {
	if _, err := s.Flows.Get(ctx, c.workspace(), c.id); err != nil {
		return list[enrollmentBody]{}, err
	}
	return s.enrollmentsOf(ctx, c, &c.id)
}

// enrollmentsOf lists the enrollments of a flow, or of all flows if it is nil.
func (s *server) enrollmentsOf(ctx context.Context, c *call, flow *uuid.UUID) (list[enrollmentBody], error) {
	found, next, err := s.FlowReader.ListEnrollments(ctx, c.workspace(),
		query.EnrollmentFilter{FlowID: flow, ProfileKey: c.query("profile_key"), Status: c.query("status"), Node: c.query("node"),
			Version: c.number("version"), Blocked: c.query("blocked_reason")}, c.page())
	return listOf(found, next, err, showEnrollment)
}

func (s *server) getEnrollment(ctx context.Context, c *call, _ none) (enrollmentBody, error) {
	found, err := s.FlowReader.GetEnrollment(ctx, c.workspace(), c.id)
	return showEnrollment(found), err
}

type enrollmentHistory struct {
	Enrollment enrollmentBody       `json:"enrollment"`
	Steps      []enrollmentStepBody `json:"steps"`
	Truncated  bool                 `json:"truncated"`
}

type enrollmentStepBody struct {
	Step         int               `json:"step"`
	Version      int               `json:"version"`
	Node         *string           `json:"node"`
	Event        string            `json:"event"`
	Data         map[string]any    `json:"data"`
	At           time.Time         `json:"at"`
	Notification *stepNotification `json:"notification"`
	Message      *deliveryBody     `json:"webhook_message"`
}

// stepNotification is the notification that a step wrote. Its status is null after it was
// deleted.
type stepNotification struct {
	ID     string  `json:"id"`
	Status *string `json:"status"`
	Reason *string `json:"reason"`
}

func showEnrollmentStep(n query.Step) enrollmentStepBody {
	b := enrollmentStepBody{n.Step, n.Version, orNull(n.Node), n.Event, objectOf(n.Data), n.At.UTC(), nil, nil}
	if n.NotificationID != "" {
		b.Notification = &stepNotification{ID: n.NotificationID}
	}
	if n.Notification != nil {
		b.Notification.Status, b.Notification.Reason = &n.Notification.Status, n.Notification.Reason
	}
	if n.Message != nil {
		delivery := showDelivery(*n.Message)
		b.Message = &delivery
	}
	return b
}

func (s *server) readEnrollmentHistory(ctx context.Context, c *call, _ none) (enrollmentHistory, error) {
	after := -1
	if c.query("after") != "" {
		after = c.number("after")
	}
	now, steps, truncated, err := s.FlowReader.Steps(ctx, c.workspace(), c.id, after)
	return enrollmentHistory{showEnrollment(now), each(steps, showEnrollmentStep), truncated}, err
}

type exit struct {
	Note string `json:"note"`
}

func (s *server) exitEnrollment(ctx context.Context, c *call, in exit) (enrollmentBody, error) {
	if err := s.Flows.Exit(ctx, c.workspace(), c.id, in.Note, c.actor()); err != nil {
		return enrollmentBody{}, err
	}
	now, err := s.FlowReader.GetEnrollment(ctx, c.workspace(), c.id)
	return showEnrollment(now), err
}

type move struct {
	Version *int   `json:"version"`
	Node    string `json:"node"`
}

func (s *server) moveEnrollment(ctx context.Context, c *call, in move) (enrollmentBody, error) {
	if err := s.Flows.Move(ctx, c.workspace(), c.id, in.Version, in.Node, c.actor()); err != nil {
		return enrollmentBody{}, err
	}
	now, err := s.FlowReader.GetEnrollment(ctx, c.workspace(), c.id)
	return showEnrollment(now), err
}

// newEnrollment is one requested enrollment.
type newEnrollment struct {
	ProfileKey string          `json:"profile_key"`
	SourceID   string          `json:"source_id"`
	Properties json.RawMessage `json:"properties"`
	OccurredAt time.Time       `json:"occurred_at"`
}

// enrolling converts the request for package flows; retry identifies the HTTP request.
func (in newEnrollment) enrolling(retry string) intake.Enrolling {
	return intake.Enrolling{ProfileKey: in.ProfileKey, ID: in.SourceID, Retry: retry, Properties: in.Properties, OccurredAt: in.OccurredAt}
}

// enrollResult is what a trigger did in one flow.
type enrollResult struct {
	FlowID       string  `json:"flow_id"`
	Status       string  `json:"status"`
	Reason       *string `json:"reason"`
	Detail       *string `json:"detail"`
	EnrollmentID *string `json:"enrollment_id"`
}

func showResult(r intake.Result) enrollResult {
	return enrollResult{lemma.FormatID(lemma.PrefixFlow, r.FlowID), r.Outcome, orNull(r.Reason), orNull(r.Detail),
		idOrNull(lemma.PrefixEnrollment, r.EnrollmentID)}
}

// shownTo converts a result for the answer. With dry_run it has no enrollment_id.
func (c *call) shownTo(r intake.Result) enrollResult {
	if c.dryRun() && r.Outcome == enrollment.Enrolled {
		r.EnrollmentID = nil
	}
	return showResult(r)
}

// enrolled is the answer to an enrollment.
type enrolled struct {
	enrollResult
	SourceID *string `json:"source_id"`
	DryRun   bool    `json:"dry_run"`
}

// status is 201 only if an enrollment was created.
func (b enrolled) status() int {
	if b.Status == enrollment.Enrolled && !b.DryRun {
		return http.StatusCreated
	}
	return http.StatusOK
}

func (b enrolled) location() string { return "/v1/enrollments/" + *b.EnrollmentID }

func (s *server) enroll(ctx context.Context, c *call, in newEnrollment) (enrolled, error) {
	r, err := s.Flows.Intake.Enroll(ctx, c.workspace(), c.id, in.enrolling(c.retry(0)), c.dryRun())
	return enrolled{c.shownTo(r), orNull(in.SourceID), c.dryRun()}, err
}

type newEnrollments struct {
	Enrollments []json.RawMessage `json:"enrollments"`
}

type enrollResults struct {
	Results []enrollItem `json:"results"`
	Counts  enrollCounts `json:"counts"`
	DryRun  bool         `json:"dry_run"`
}

type enrollCounts struct {
	Enrolled int `json:"enrolled"`
	Refused  int `json:"refused"`
	Invalid  int `json:"invalid"`
}

type enrollItem struct {
	Index        int            `json:"index"`
	SourceID     *string        `json:"source_id"`
	Status       string         `json:"status"`
	Reason       *string        `json:"reason"`
	Detail       *string        `json:"detail"`
	EnrollmentID *string        `json:"enrollment_id"`
	Errors       []problemFault `json:"errors"`
}

func (s *server) enrollBulk(ctx context.Context, c *call, in newEnrollments) (enrollResults, error) {
	all, err := readItems[newEnrollment](ctx, s, c, "enrollments", "NewEnrollment", in.Enrollments)
	if err != nil {
		return enrollResults{}, err
	}
	requested := make([]intake.Enrolling, 0, len(all.sound))
	for _, i := range all.sound {
		requested = append(requested, all.items[i].value.enrolling(c.retry(i)))
	}
	done, err := s.Flows.Intake.EnrollAll(ctx, c.workspace(), c.id, requested, c.dryRun())
	if err != nil {
		return enrollResults{}, err
	}
	out, err := enrolledItems(c, all, done)
	for i := range out.Results {
		out.Results[i].SourceID = orNull(all.items[i].value.SourceID)
	}
	return out, err
}

// enrolledItems merges the results of the valid items with the faults of the others.
func enrolledItems(c *call, l items[newEnrollment], done []intake.EnrolledOne) (enrollResults, error) {
	out := enrollResults{Results: make([]enrollItem, len(l.items)), DryRun: c.dryRun()}
	for i, d := range done {
		at := l.sound[i]
		if err := l.blame(at, d.Err); err != nil {
			return out, err
		}
		r := c.shownTo(d.Result)
		out.Results[at] = enrollItem{Status: r.Status, Reason: r.Reason, Detail: r.Detail, EnrollmentID: r.EnrollmentID}
	}
	for i := range out.Results {
		r := &out.Results[i]
		r.Index, r.Errors = i, each(l.items[i].faults, showFault)
		switch {
		case len(r.Errors) > 0:
			r.Status = "invalid"
			out.Counts.Invalid++
		case r.Status == enrollment.Enrolled:
			out.Counts.Enrolled++
		default:
			out.Counts.Refused++
		}
	}
	return out, nil
}

type erasure struct {
	ProfileKey string `json:"profile_key"`
}

type erasedBody struct {
	Enrollments   int64 `json:"enrollments"`
	Exited        int64 `json:"exited"`
	Events        int64 `json:"events"`
	Refusals      int64 `json:"refusals"`
	Notifications int64 `json:"notifications"`
	Processing    int64 `json:"processing"`
}

func (s *server) eraseProfile(ctx context.Context, c *call, in erasure) (erasedBody, error) {
	e, err := s.Flows.Erase(ctx, c.workspace(), in.ProfileKey)
	return erasedBody{Enrollments: e.Enrollments, Exited: e.Exited, Events: e.Events, Refusals: e.Refusals, Notifications: e.Notifications,
		Processing: e.InFlight}, err
}

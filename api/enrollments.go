package api

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/flows"
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
	Trouble    *string    `json:"trouble"`
	Failures   int        `json:"failures"`
	DueSince   *time.Time `json:"due_since"`
	Source     string     `json:"source"`
	EnrolledAt time.Time  `json:"enrolled_at"`
	EndedAt    *time.Time `json:"ended_at"`
}

func showEnrollment(e flows.Enrollment) enrollmentBody {
	return enrollmentBody{ID: lemma.FormatID(lemma.PrefixEnrollment, e.ID), FlowID: lemma.FormatID(lemma.PrefixFlow, e.FlowID), Version: e.Version,
		ProfileKey: e.ProfileKey, Status: e.Status, ExitReason: orNull(e.ExitReason), Node: orNull(e.Node), Step: e.Step, ResumeAt: utc(e.ResumeAt),
		Awaits: orNull(e.Awaits), Trouble: orNull(e.Trouble), Failures: e.Failures, DueSince: utc(e.DueSince), Source: e.Source, EnrolledAt: e.EnrolledAt.UTC(), EndedAt: utc(e.EndedAt)}
}

func (c *call) enrollmentID() (uuid.UUID, error) { return c.id(lemma.PrefixEnrollment, "enrollment") }

func (s *server) listEnrollments(ctx context.Context, c *call, _ none) (list[enrollmentBody], error) {
	flow, ok := c.filterID("flow_id", lemma.PrefixFlow)
	if !ok {
		return nothing[enrollmentBody](), nil
	}
	found, next, err := s.Flows.ListEnrollments(ctx, c.workspace(), flows.EnrollmentFilter{FlowID: flow, ProfileKey: c.query("profile_key"),
		Status: c.query("status"), Node: c.query("node"), Version: c.number("version"), Trouble: c.query("trouble")}, c.page())
	return listOf(found, next, err, showEnrollment)
}

func (s *server) getEnrollment(ctx context.Context, c *call, _ none) (enrollmentBody, error) {
	id, err := c.enrollmentID()
	if err != nil {
		return enrollmentBody{}, err
	}
	found, err := s.Flows.GetEnrollment(ctx, c.workspace(), id)
	return showEnrollment(found), err
}

type enrollmentHistory struct {
	Enrollment enrollmentBody       `json:"enrollment"`
	Steps      []enrollmentStepBody `json:"steps"`
}

type enrollmentStepBody struct {
	Step           int            `json:"step"`
	Version        int            `json:"version"`
	Node           *string        `json:"node"`
	Event          string         `json:"event"`
	Data           map[string]any `json:"data"`
	At             time.Time      `json:"at"`
	NotificationID *string        `json:"notification_id"`
	Notification   *stateBody     `json:"notification"`
	Webhook        *fateBody      `json:"webhook"`
}

// stateBody is where a notification stands.
type stateBody struct {
	Status string  `json:"status"`
	Reason *string `json:"reason"`
}

func showEnrollmentStep(n flows.Step) enrollmentStepBody {
	b := enrollmentStepBody{n.Step, n.Version, orNull(n.Node), n.Event, objectOf(n.Data), n.At.UTC(), orNull(n.NotificationID), nil, nil}
	if n.Notification != nil {
		b.Notification = &stateBody{n.Notification.Status, n.Notification.Reason}
	}
	if n.Message != nil {
		fate := showFate(*n.Message)
		b.Webhook = &fate
	}
	return b
}

func (s *server) readEnrollmentHistory(ctx context.Context, c *call, _ none) (enrollmentHistory, error) {
	id, err := c.enrollmentID()
	if err != nil {
		return enrollmentHistory{}, err
	}
	now, steps, err := s.Flows.Steps(ctx, c.workspace(), id)
	return enrollmentHistory{showEnrollment(now), each(steps, showEnrollmentStep)}, err
}

type exit struct {
	Note string `json:"note"`
}

func (s *server) exitEnrollment(ctx context.Context, c *call, in exit) (enrollmentBody, error) {
	id, err := c.enrollmentID()
	if err != nil {
		return enrollmentBody{}, err
	}
	now, err := s.Flows.Exit(ctx, c.workspace(), id, in.Note, c.asker())
	return showEnrollment(now), err
}

type move struct {
	Version *int   `json:"version"`
	Node    string `json:"node"`
}

func (s *server) moveEnrollment(ctx context.Context, c *call, in move) (enrollmentBody, error) {
	id, err := c.enrollmentID()
	if err != nil {
		return enrollmentBody{}, err
	}
	now, err := s.Flows.Move(ctx, c.workspace(), id, in.Version, in.Node, c.asker())
	return showEnrollment(now), err
}

// newEnrollment is one enrollment that is asked for.
type newEnrollment struct {
	ProfileKey string          `json:"profile_key"`
	ID         string          `json:"id"`
	Properties json.RawMessage `json:"properties"`
	OccurredAt time.Time       `json:"occurred_at"`
}

// asked is what flows are told; retry names the request that asks.
func (in newEnrollment) asked(retry string) flows.Enrolling {
	return flows.Enrolling{ProfileKey: in.ProfileKey, ID: in.ID, Retry: retry, Properties: in.Properties, OccurredAt: in.OccurredAt}
}

// enrollResult is what a trigger did in one flow.
type enrollResult struct {
	FlowID       string  `json:"flow_id"`
	Result       string  `json:"result"`
	Reason       *string `json:"reason"`
	Detail       *string `json:"detail"`
	EnrollmentID *string `json:"enrollment_id"`
}

func showResult(r flows.Result) enrollResult {
	return enrollResult{lemma.FormatID(lemma.PrefixFlow, r.FlowID), r.Outcome, orNull(r.Reason), orNull(r.Detail), idOrNull(lemma.PrefixEnrollment, r.EnrollmentID)}
}

// shownTo is a result as it is shown to who asked to enroll. What only would be
// has no id: nobody could find it.
func (c *call) shownTo(r flows.Result) enrollResult {
	if c.dryRun() && r.Outcome == flows.Enrolled {
		r.EnrollmentID = nil
	}
	return showResult(r)
}

// enrolled is the answer to one who asked to enroll.
type enrolled struct {
	enrollResult
	DryRun bool `json:"dry_run"`
}

// status: only an enrollment that was made is 201.
func (b enrolled) status() int {
	if b.Result == flows.Enrolled && !b.DryRun {
		return http.StatusCreated
	}
	return http.StatusOK
}

func (b enrolled) location() string { return "/v1/enrollments/" + *b.EnrollmentID }

func (s *server) enroll(ctx context.Context, c *call, in newEnrollment) (enrolled, error) {
	id, err := c.flowID()
	if err != nil {
		return enrolled{}, err
	}
	r, err := s.Flows.Enroll(ctx, c.workspace(), id, in.asked(c.retry(0)), c.dryRun())
	return enrolled{c.shownTo(r), c.dryRun()}, err
}

type newEnrollments struct {
	Enrollments []json.RawMessage `json:"enrollments"`
}

type enrollResults struct {
	Results  []enrollItem `json:"results"`
	Enrolled int          `json:"enrolled"`
	Refused  int          `json:"refused"`
	Invalid  int          `json:"invalid"`
	DryRun   bool         `json:"dry_run"`
}

type enrollItem struct {
	Index        int            `json:"index"`
	Result       string         `json:"result"`
	Reason       *string        `json:"reason"`
	Detail       *string        `json:"detail"`
	EnrollmentID *string        `json:"enrollment_id"`
	Errors       []problemFault `json:"errors"`
}

func (s *server) enrollBulk(ctx context.Context, c *call, in newEnrollments) (enrollResults, error) {
	id, err := c.flowID()
	if err != nil {
		return enrollResults{}, err
	}
	lot := readItems[newEnrollment]("enrollments", "NewEnrollment", in.Enrollments)
	asked := make([]flows.Enrolling, 0, len(lot.sound))
	for _, i := range lot.sound {
		asked = append(asked, lot.items[i].value.asked(c.retry(i)))
	}
	done, err := s.Flows.EnrollAll(ctx, c.workspace(), id, asked, c.dryRun())
	if err != nil {
		return enrollResults{}, err
	}
	return lot.enrolled(c, done)
}

// enrolled puts what came of the sound items among the faults of the others.
func (l itemLot[T]) enrolled(c *call, done []flows.EnrolledOne) (enrollResults, error) {
	out := enrollResults{Results: make([]enrollItem, len(l.items)), DryRun: c.dryRun()}
	for i, d := range done {
		at := l.sound[i]
		if err := l.blame(at, d.Err); err != nil {
			return out, err
		}
		r := c.shownTo(d.Result)
		out.Results[at] = enrollItem{Result: r.Result, Reason: r.Reason, Detail: r.Detail, EnrollmentID: r.EnrollmentID}
	}
	for i := range out.Results {
		r := &out.Results[i]
		r.Index, r.Errors = i, each(l.items[i].faults, showFault)
		switch {
		case len(r.Errors) > 0:
			r.Result = "invalid"
			out.Invalid++
		case r.Result == flows.Enrolled:
			out.Enrolled++
		default:
			out.Refused++
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
	InFlight      int64 `json:"in_flight"`
}

func (s *server) eraseProfile(ctx context.Context, c *call, in erasure) (erasedBody, error) {
	e, err := s.Flows.Erase(ctx, c.workspace(), in.ProfileKey)
	return erasedBody(e), err
}

package api

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/google/uuid"

	"lemma"
	"lemma/client"
	"lemma/flows/enrollment"
	"lemma/flows/intake"
	"lemma/flows/query"
)

func showEnrollment(e query.Enrollment) client.Enrollment {
	return client.Enrollment{ID: lemma.FormatID(lemma.PrefixEnrollment, e.ID), FlowID: lemma.FormatID(lemma.PrefixFlow, e.FlowID),
		Version: e.Version, ProfileKey: e.ProfileKey, Status: e.Status, ExitReason: orNull(e.ExitReason), Node: orNull(e.Node), Step: e.Step,
		ResumeAt: utc(e.ResumeAt), Awaits: orNull(e.Awaits), BlockedReason: orNull(e.BlockedReason), BlockedSince: utc(e.BlockedSince),
		Failures: e.Failures, TriggerType: e.Source, CreatedAt: e.EnrolledAt.UTC(), EndedAt: utc(e.EndedAt)}
}

func (s *server) listEnrollments(ctx context.Context, c *call, _ none) (list[client.Enrollment], error) {
	flow, ok := c.filterID("flow_id", lemma.PrefixFlow)
	if !ok {
		return nothing[client.Enrollment](), nil
	}
	return s.enrollmentsOf(ctx, c, flow)
}

func (s *server) listEnrollmentsOfFlow(ctx context.Context, c *call, _ none) (list[client.Enrollment], error) {
	if _, err := s.Flows.Get(ctx, c.workspace(), c.id); err != nil {
		return list[client.Enrollment]{}, err
	}
	return s.enrollmentsOf(ctx, c, &c.id)
}

// enrollmentsOf lists the enrollments of a flow, or of all flows if it is nil.
func (s *server) enrollmentsOf(ctx context.Context, c *call, flow *uuid.UUID) (list[client.Enrollment], error) {
	found, next, err := s.FlowReader.ListEnrollments(ctx, c.workspace(),
		query.EnrollmentFilter{FlowID: flow, ProfileKey: c.query("profile_key"), Status: c.query("status"), Node: c.query("node"),
			Version: c.number("version"), Blocked: c.query("blocked_reason")}, c.page())
	return listOf(found, next, err, showEnrollment)
}

func (s *server) getEnrollment(ctx context.Context, c *call, _ none) (client.Enrollment, error) {
	found, err := s.FlowReader.GetEnrollment(ctx, c.workspace(), c.id)
	return showEnrollment(found), err
}

func showEnrollmentStep(n query.Step) client.EnrollmentStep {
	b := client.EnrollmentStep{Step: n.Step, Version: n.Version, Node: orNull(n.Node), Event: n.Event, Data: neverNull(n.Data), At: n.At.UTC()}
	if n.NotificationID != "" {
		b.Notification = &client.StepNotification{ID: n.NotificationID}
	}
	if n.Notification != nil {
		b.Notification.Status, b.Notification.Reason = &n.Notification.Status, n.Notification.Reason
	}
	b.Others = each(n.Others, func(o query.StepNotification) client.StepNotification {
		shown := client.StepNotification{ID: o.ID}
		if o.State != nil {
			shown.Status, shown.Reason = &o.State.Status, o.State.Reason
		}
		return shown
	})
	if n.Message != nil {
		b.WebhookMessage = new(showDelivery(*n.Message))
	}
	return b
}

func (s *server) readEnrollmentHistory(ctx context.Context, c *call, _ none) (client.EnrollmentHistory, error) {
	after := -1
	if c.query("after") != "" {
		after = c.number("after")
	}
	now, steps, truncated, err := s.FlowReader.Steps(ctx, c.workspace(), c.id, after)
	return client.EnrollmentHistory{Enrollment: showEnrollment(now), Steps: each(steps, showEnrollmentStep), Truncated: truncated}, err
}

type exit struct {
	Note string `json:"note"`
}

func (s *server) exitEnrollment(ctx context.Context, c *call, in exit) (client.Enrollment, error) {
	if err := s.Flows.Exit(ctx, c.workspace(), c.id, in.Note, c.actor()); err != nil {
		return client.Enrollment{}, err
	}
	now, err := s.FlowReader.GetEnrollment(ctx, c.workspace(), c.id)
	return showEnrollment(now), err
}

type move struct {
	Version *int   `json:"version"`
	Node    string `json:"node"`
}

func (s *server) moveEnrollment(ctx context.Context, c *call, in move) (client.Enrollment, error) {
	if err := s.Flows.Move(ctx, c.workspace(), c.id, in.Version, in.Node, c.actor()); err != nil {
		return client.Enrollment{}, err
	}
	now, err := s.FlowReader.GetEnrollment(ctx, c.workspace(), c.id)
	return showEnrollment(now), err
}

// enrolling converts the request for package flows; retry identifies the HTTP request.
func enrolling(in client.NewEnrollment, retry string) intake.Enrolling {
	return intake.Enrolling{ProfileKey: in.ProfileKey, ID: in.SourceID, Retry: retry, Properties: in.Properties,
		OccurredAt: orZero(in.OccurredAt)}
}

func showResult(r intake.Result) client.EnrollResult {
	return client.EnrollResult{FlowID: lemma.FormatID(lemma.PrefixFlow, r.FlowID), Status: r.Outcome, Reason: orNull(r.Reason),
		Detail: orNull(r.Detail), EnrollmentID: idOrNull(lemma.PrefixEnrollment, r.EnrollmentID)}
}

// shownTo converts a result for the answer. With dry_run it has no enrollment_id.
func (c *call) shownTo(r intake.Result) client.EnrollResult {
	if c.dryRun() && r.Outcome == enrollment.Enrolled {
		r.EnrollmentID = nil
	}
	return showResult(r)
}

// enrolled is the answer to an enrollment.
type enrolled struct{ client.EnrollAnswer }

// status is 201 only if an enrollment was created.
func (b enrolled) status() int {
	if b.Status == enrollment.Enrolled && !b.DryRun {
		return http.StatusCreated
	}
	return http.StatusOK
}

func (b enrolled) location() string { return "/v1/enrollments/" + *b.EnrollmentID }

func (s *server) enroll(ctx context.Context, c *call, in client.NewEnrollment) (enrolled, error) {
	r, err := s.Flows.Intake.Enroll(ctx, c.workspace(), c.id, enrolling(in, c.retry(0)), c.dryRun())
	return enrolled{client.EnrollAnswer{EnrollResult: c.shownTo(r), SourceID: orNull(in.SourceID), DryRun: c.dryRun()}}, err
}

type newEnrollments struct {
	Enrollments []json.RawMessage `json:"enrollments"`
}

func (s *server) enrollBulk(ctx context.Context, c *call, in newEnrollments) (client.EnrollResults, error) {
	all, err := readItems[client.NewEnrollment](ctx, s, c, "enrollments", "NewEnrollment", in.Enrollments)
	if err != nil {
		return client.EnrollResults{}, err
	}
	requested := make([]intake.Enrolling, 0, len(all.sound))
	for _, i := range all.sound {
		requested = append(requested, enrolling(all.items[i].value, c.retry(i)))
	}
	done, err := s.Flows.Intake.EnrollAll(ctx, c.workspace(), c.id, requested, c.dryRun())
	if err != nil {
		return client.EnrollResults{}, err
	}
	out, err := enrolledItems(c, all, done)
	for i := range out.Results {
		out.Results[i].SourceID = orNull(all.items[i].value.SourceID)
	}
	return out, err
}

// enrolledItems merges the results of the valid items with the faults of the others.
func enrolledItems(c *call, l items[client.NewEnrollment], done []intake.EnrolledOne) (client.EnrollResults, error) {
	out := client.EnrollResults{Results: make([]client.EnrollItem, len(l.items)), DryRun: c.dryRun()}
	for i, d := range done {
		at := l.sound[i]
		if err := l.blame(at, d.Err); err != nil {
			return out, err
		}
		r := c.shownTo(d.Result)
		out.Results[at] = client.EnrollItem{Status: r.Status, Reason: r.Reason, Detail: r.Detail, EnrollmentID: r.EnrollmentID}
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

func (s *server) eraseProfile(ctx context.Context, c *call, in erasure) (client.Erased, error) {
	e, err := s.Flows.Erase(ctx, c.workspace(), in.ProfileKey)
	return client.Erased{Enrollments: e.Enrollments, Exited: e.Exited, Events: e.Events, Refusals: e.Refusals, Notifications: e.Notifications,
		Processing: e.InFlight, More: e.More}, err
}

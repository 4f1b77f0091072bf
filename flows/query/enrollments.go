package query

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/flows/enrollment"
	"lemma/flows/execution"
	"lemma/notifications"
	"lemma/page"
	"lemma/webhooks"
)

// waits is true of an enrollment whose wait for an event goes on: neither has the event
// come nor has the time passed. A retry changes resume_at, but not first_due_at.
const waits = `matched_event is null and coalesce(first_due_at, resume_at) > now()`

const selectEnrollment = `
	select id, workspace_id, flow_id, version, profile_key,
		case when status = 'active' and waiting_since is not null and resume_at > now() then 'waiting' else status end as status,
		coalesce(exit_reason, '') as exit_reason, node, step, resume_at,
		coalesce(case when ` + waits + ` then awaits end, '') as awaits, coalesce(awaits, '') as awaited, matched_event is not null as matched,
		coalesce((select v.received_at from trigger_events v where v.workspace_id = enrollments.workspace_id and v.key = matched_event),
			first_due_at, resume_at) as due_at, coalesce(blocked_reason, '') as blocked_reason,
		case when blocked_reason is not null then first_due_at end as blocked_since,
		failures::int as failures, source, enrolled_at, ended_at
	from enrollments`

// GetEnrollment reads one enrollment.
func (r *Reader) GetEnrollment(ctx context.Context, ws, id uuid.UUID) (Enrollment, error) {
	found, err := r.readEnrollments(ctx, selectEnrollment+` where workspace_id = $1 and id = $2`, ws, id)
	if err != nil {
		return Enrollment{}, fmt.Errorf("get enrollment: %w", err)
	}
	if len(found) == 0 {
		return Enrollment{}, lemma.Missing("enrollment")
	}
	return found[0], nil
}

func (r *Reader) readEnrollments(ctx context.Context, sql string, args ...any) ([]Enrollment, error) {
	rows, _ := r.pool.Query(ctx, sql, args...)
	return pgx.CollectRows(rows, pgx.RowToStructByName[Enrollment])
}

var enrollmentList = page.List[Enrollment]{Name: "enrollments", Created: "enrolled_at", Orders: map[string]page.Order[Enrollment]{
	"created_at": page.ByID("id", func(e Enrollment) uuid.UUID { return e.ID }),
}}

// ListEnrollments returns one page of enrollments.
func (r *Reader) ListEnrollments(ctx context.Context, ws uuid.UUID, filter EnrollmentFilter, q page.Query) ([]Enrollment, string, error) {
	statement, err := enrollmentList.Start(q, ws)
	if err != nil {
		return nil, "", err
	}
	statement.Between("id")
	statement.Unindexed()
	if err := filter.conditions(statement); err != nil {
		return nil, "", err
	}
	read := func(end page.Clauses) ([]Enrollment, error) {
		return r.readEnrollments(ctx, selectEnrollment+` where workspace_id = $1 and `+end.Where+" "+end.Order, end.Args...)
	}
	if filter.indexed() {
		return statement.Read(read)
	}
	return statement.ReadParts(ctx, r.pool, "enrollments where workspace_id = $1", read)
}

// statuses are the values of a list's filter by status.
var statuses = []string{enrollment.Active, enrollment.Waiting, enrollment.Completed, enrollment.Exited, enrollment.Refused}

// indexed is true of a filter that an index serves: that of the profile, or that of blocked ones.
func (f EnrollmentFilter) indexed() bool { return f.ProfileKey != "" || f.Blocked != "" }

// conditions has only the filters that are set, so that the planner can choose an index by
// them.
func (f EnrollmentFilter) conditions(s *page.Statement[Enrollment]) error {
	and := func(condition string, value any) { s.And(fmt.Sprintf(condition, s.Arg(value))) }
	if f.FlowID != nil {
		and("flow_id = %s", *f.FlowID)
	}
	if f.ProfileKey != "" {
		and("(profile_key = %[1]s and status = 'active' or profile_key = %[1]s and status <> 'active')", f.ProfileKey) // an index for each
	}
	if f.Node != "" {
		and("node = %s", f.Node)
	}
	if f.Blocked == "any" {
		s.And("status = 'active' and blocked_reason is not null")
	} else if f.Blocked != "" {
		and("status = 'active' and blocked_reason = %s", f.Blocked)
	}
	if f.Version != 0 {
		and("version = %s", enrollment.VersionNumber(f.Version))
	}
	switch {
	case f.Status == "":
	case !slices.Contains(statuses, f.Status):
		return lemma.Fault("?status", "invalid", "must be one of %s", strings.Join(statuses, ", "))
	case f.Status == enrollment.Waiting:
		s.And("status = 'active' and waiting_since is not null and resume_at > now()")
	case f.Status == enrollment.Active: // a literal: the index of active enrollments requires it
		s.And("status = 'active'")
	default:
		and("status = %s", f.Status)
	}
	return nil
}

// mostMessages is how many notifications the steps of an answer with several steps have.
const mostMessages = 1000

// Steps returns an enrollment and its steps after one, in order. They have at most
// page.MaxBytes of data and mostMessages, or are one; truncated is true if others follow.
func (r *Reader) Steps(ctx context.Context, ws, id uuid.UUID, after int) (e Enrollment, steps []Step, truncated bool, err error) {
	e, err = r.GetEnrollment(ctx, ws, id)
	if err != nil {
		return Enrollment{}, nil, false, err
	}
	rows, _ := r.pool.Query(ctx, `
		select s.step, s.version, s.node, s.event, coalesce(s.data, '{}'), s.at, w.truncated from (
			select step, count(*) over () < count as truncated from (
				select step, sum(octet_length(data)) over w as bytes, row_number() over w as nth, count(*) over () as count
				from enrollment_steps where workspace_id = $1 and enrollment_id = $2 and step > $3 window w as (order by step)
			) a where nth = 1 or bytes is null or bytes <= $4
		) w join enrollment_steps s on s.workspace_id = $1 and s.enrollment_id = $2 and s.step = w.step
		order by s.step`, ws, id, after, page.MaxBytes)
	steps, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (s Step, err error) {
		var data string
		if err := row.Scan(&s.Step, &s.Version, &s.Node, &s.Event, &data, &s.At, &truncated); err != nil {
			return s, err
		}
		s.Data = enrollment.ReadObject([]byte(data))
		if s.Event == enrollment.StepSent || s.Event == enrollment.StepSkipped && !slices.Contains(skipped, s.Data["reason"]) {
			s.NotificationID = lemma.FormatNotificationID(enrollment.OriginOf(e.FlowID, e.ID), enrollment.NodeKey(e.ID, s.Node))
		}
		if s.Event == enrollment.StepMoved || s.Event == enrollment.StepExited {
			delete(s.Data, enrollment.StepRequest)
		}
		return s, nil
	})
	if err == nil {
		whole := len(steps)
		steps = limited(steps)
		truncated = truncated || len(steps) < whole
		err = r.readOutcomes(ctx, e, steps)
	}
	return e, steps, truncated, lemma.Wrap(err, "read steps of enrollment %s", id)
}

// skipped are the reasons for which a webhook node is skipped: there is no notification to
// name.
var skipped = []any{execution.AlreadyCalled, execution.TooLarge}

// StepNotification is a notification that a step wrote beside its first.
type StepNotification struct {
	ID    string
	State *notifications.State // nil if it was deleted

	key uuid.UUID
}

// limited returns the first steps, up to mostMessages, and at least one.
func limited(steps []Step) []Step {
	n := 0
	for i, s := range steps {
		if n += s.messages(); n > mostMessages && i > 0 {
			return steps[:i]
		}
	}
	return steps
}

// messages is how many notifications a step wrote.
func (s Step) messages() int {
	count, _ := s.Data[enrollment.StepMessages].(json.Number)
	n, _ := count.Int64()
	return int(n)
}

// others are the notifications that a step wrote beside its first.
func others(e Enrollment, s Step) (all []StepNotification) {
	for i := 1; i < s.messages(); i++ {
		key := enrollment.MessageKey(e.ID, s.Node, i)
		all = append(all, StepNotification{ID: lemma.FormatNotificationID(enrollment.OriginOf(e.FlowID, e.ID), key), key: key})
	}
	return all
}

// readOutcomes adds the outcomes of messages to the steps that wrote them.
func (r *Reader) readOutcomes(ctx context.Context, e Enrollment, steps []Step) error {
	var keys []uuid.UUID
	for i, s := range steps {
		if s.NotificationID != "" || s.Event == "webhook" {
			keys = append(keys, enrollment.NodeKey(e.ID, s.Node))
		}
		if s.NotificationID != "" {
			steps[i].Others = others(e, s)
		}
		for _, o := range steps[i].Others {
			keys = append(keys, o.key)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	notified, err := r.ledger.States(ctx, e.WorkspaceID, enrollment.OriginOf(e.FlowID, e.ID), keys)
	if err != nil {
		return err
	}
	messages, err := r.webhooks.Deliveries(ctx, e.WorkspaceID, keys)
	if err != nil {
		return err
	}
	for i := range steps {
		s, key := &steps[i], enrollment.NodeKey(e.ID, steps[i].Node)
		if notification, ok := notified[key]; ok && s.NotificationID != "" {
			s.Notification = &notification
		}
		for j := range s.Others {
			if state, ok := notified[s.Others[j].key]; ok {
				s.Others[j].State = &state
			}
		}
		if s.Event == "webhook" {
			m := messages[key]
			m.ID = key
			s.Message = &m
		}
	}
	return nil
}

// Enrollment is one profile's execution of one version of a flow.
type Enrollment struct {
	ID          uuid.UUID
	WorkspaceID uuid.UUID
	FlowID      uuid.UUID
	Version     int
	ProfileKey  string
	Status      string // active, waiting (active, and not due), completed, exited, refused
	// Goal, condition, manual, flow_archived, version_replaced, left_audience, no_profile,
	// erased, or the reason of a refusal.
	ExitReason    string
	Node          string // the node it is on or ended on; empty before the first
	Step          int
	ResumeAt      *time.Time
	Awaits        string     // the event that it waits for; empty once the event has come or the time has passed
	Awaited       string     // the event of the wait where it is, also after that
	Matched       bool       // the event has come
	DueAt         *time.Time // when it first was due: resume_at, but for retries
	BlockedReason string     // what keeps it from advancing, such as source_unavailable
	BlockedSince  *time.Time // since when it is due and blocked
	Failures      int
	Source        string // event, audience, direct
	EnrolledAt    time.Time
	EndedAt       *time.Time
}

// EnrollmentFilter narrows a list.
type EnrollmentFilter struct {
	FlowID     *uuid.UUID
	ProfileKey string
	Status     string // active covers waiting
	Node       string
	Version    int
	Blocked    string // a code; any: every code
}

// Step is one event in the history of an enrollment.
type Step struct {
	Step           int
	Version        int
	Node           string
	Event          string // one of enrollment.StepEvents
	Data           map[string]any
	At             time.Time
	NotificationID string // sent, and skipped at a send: the notification

	// The current outcome of what the step wrote.
	Notification *notifications.State // of NotificationID; also nil if it was deleted
	Others       []StepNotification   // to the other addresses of the profile
	Message      *webhooks.Delivery   // webhook: its message. Status is empty if it was deleted after its retention
}

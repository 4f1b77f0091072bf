package flows

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
)

// statusWaiting is shown and not stored: active, in a wait that has begun, and
// not due.
const statusWaiting = "waiting"

const selectEnrollment = `
	select id, workspace_id, flow_id, version, profile_key,
		case when status = 'active' and waiting_since is not null and resume_at > now() then 'waiting' else status end as status,
		coalesce(exit_reason, '') as exit_reason, node, step, resume_at, coalesce(awaits, '') as awaits, coalesce(trouble, '') as trouble, case when trouble is not null then due_since end as due_since,
		failures::int as failures, source, enrolled_at, ended_at
	from enrollments`

// GetEnrollment reads one enrollment.
func (f *Flows) GetEnrollment(ctx context.Context, ws, id uuid.UUID) (Enrollment, error) {
	found, err := f.readEnrollments(ctx, selectEnrollment+` where workspace_id = $1 and id = $2`, ws, id)
	if err != nil {
		return Enrollment{}, fmt.Errorf("get enrollment: %w", err)
	}
	if len(found) == 0 {
		return Enrollment{}, lemma.Missing("enrollment")
	}
	return found[0], nil
}

func (f *Flows) readEnrollments(ctx context.Context, sql string, args ...any) ([]Enrollment, error) {
	rows, err := f.pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByName[Enrollment])
}

// ListEnrollments answers one page, newest first.
func (f *Flows) ListEnrollments(ctx context.Context, ws uuid.UUID, filter EnrollmentFilter, page lemma.Page) ([]Enrollment, string, error) {
	before, err := beforeID(lemma.PrefixEnrollment, page.Cursor)
	if err != nil {
		return nil, "", err
	}
	where, args, err := filter.conditions(ws, before)
	if err != nil {
		return nil, "", err
	}
	args = append(args, page.Limit+1)
	found, err := f.readEnrollments(ctx, fmt.Sprintf(`%s where %s order by id desc limit $%d`, selectEnrollment, where, len(args)), args...)
	if err != nil {
		return nil, "", fmt.Errorf("list enrollments: %w", err)
	}
	if len(found) <= page.Limit {
		return found, "", nil
	}
	found = found[:page.Limit]
	return found, lemma.FormatID(lemma.PrefixEnrollment, found[page.Limit-1].ID), nil
}

// statuses of an enrollment, as a list may be narrowed by.
var statuses = []string{Active, statusWaiting, Completed, Exited, statusRefused}

// conditions holds only what is asked for, so that the planner can choose an
// index by it.
func (f EnrollmentFilter) conditions(ws, before uuid.UUID) (string, []any, error) {
	args := []any{ws, before}
	all := []string{"workspace_id = $1", "id < $2"}
	and := func(condition string, value any) {
		args = append(args, value)
		all = append(all, fmt.Sprintf(condition, len(args)))
	}
	if f.FlowID != nil {
		and("flow_id = $%d", *f.FlowID)
	}
	if f.ProfileKey != "" {
		and("(profile_key = $%[1]d and status = 'active' or profile_key = $%[1]d and status <> 'active')", f.ProfileKey) // an index for each
	}
	if f.Node != "" {
		and("node = $%d", f.Node)
	}
	if f.Trouble == "any" {
		all = append(all, "status = 'active' and trouble is not null")
	} else if f.Trouble != "" {
		and("status = 'active' and trouble = $%d", f.Trouble)
	}
	if f.Version != 0 {
		and("version = $%d", int32Of(f.Version))
	}
	switch {
	case f.Status == "":
	case !slices.Contains(statuses, f.Status):
		return "", nil, lemma.Fault("?status", "invalid", "the status is one of %s", strings.Join(statuses, ", "))
	case f.Status == statusWaiting:
		all = append(all, "status = 'active' and waiting_since is not null and resume_at > now()")
	case f.Status == Active: // written out: the index of who is on the way needs it so
		all = append(all, "status = 'active'")
	default:
		and("status = $%d", f.Status)
	}
	return strings.Join(all, " and "), args, nil
}

// Steps answers an enrollment and all that happened to it, in its order.
func (f *Flows) Steps(ctx context.Context, ws, enrollment uuid.UUID) (Enrollment, []Step, error) {
	e, err := f.GetEnrollment(ctx, ws, enrollment)
	if err != nil {
		return Enrollment{}, nil, err
	}
	rows, err := f.pool.Query(ctx, `
		select step, version, node, event, coalesce(data, '{}'), at from enrollment_steps
		where workspace_id = $1 and enrollment_id = $2 order by step`, ws, enrollment)
	if err != nil {
		return Enrollment{}, nil, fmt.Errorf("read steps of enrollment %s: %w", enrollment, err)
	}
	steps, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s Step, err error) {
		var data string
		if err := row.Scan(&s.Step, &s.Version, &s.Node, &s.Event, &data, &s.At); err != nil {
			return s, err
		}
		s.Data = readObject([]byte(data))
		if s.Event == stepSent || s.Event == stepSkipped && !slices.Contains(silent, s.Data["reason"]) {
			s.NotificationID = lemma.FormatNotificationID(OriginOf(e.FlowID, e.ID), NodeKey(e.ID, s.Node))
		}
		if s.Event == stepMoved || s.Event == stepExited {
			delete(s.Data, askedBy)
		}
		return s, nil
	})
	if err == nil {
		err = f.tellFates(ctx, e, steps)
	}
	if err != nil {
		return Enrollment{}, nil, fmt.Errorf("read steps of enrollment %s: %w", enrollment, err)
	}
	return e, steps, nil
}

// silent are the reasons for which a webhook node was skipped: there is no
// notification to name.
var silent = []any{alreadyCalled, tooLarge}

// tellFates adds to the steps what became of what they wrote.
func (f *Flows) tellFates(ctx context.Context, e Enrollment, steps []Step) error {
	var keys []uuid.UUID
	for _, s := range steps {
		if s.NotificationID != "" || s.Event == "webhook" {
			keys = append(keys, NodeKey(e.ID, s.Node))
		}
	}
	if len(keys) == 0 {
		return nil
	}
	letters, err := f.ledger.States(ctx, e.WorkspaceID, OriginOf(e.FlowID, e.ID), keys)
	if err != nil {
		return err
	}
	messages, err := f.webhooks.Fates(ctx, e.WorkspaceID, keys)
	if err != nil {
		return err
	}
	for i := range steps {
		s, key := &steps[i], NodeKey(e.ID, steps[i].Node)
		if letter, ok := letters[key]; ok && s.NotificationID != "" {
			s.Notification = &letter
		}
		if s.Event == "webhook" {
			m := messages[key]
			m.ID = key
			s.Message = &m
		}
	}
	return nil
}

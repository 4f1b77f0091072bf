package flows_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"lemma"
	"lemma/flows"
	"lemma/flows/enrollment"
	"lemma/flows/flowstest"
	"lemma/flows/query"
	"lemma/page"
	"lemma/pgtest"
)

func TestManualExit(t *testing.T) {
	b := setup(t, 1)
	ctx := context.Background()
	flow := b.Live(flowstest.Welcome)
	b.RecordEvent("c1", "signed_up")
	b.Settle()
	id := b.Enrollment(flow, "c1").ID
	_, err := b.Pause(ctx, b.Workspace, flow, nil)
	b.Must(err)
	e, err := b.Exit(ctx, b.Workspace, id, "called us")
	b.Must(err)
	if e.Status != enrollment.Exited || e.ExitReason != enrollment.ExitManual || e.ResumeAt != nil || e.EndedAt == nil {
		t.Errorf("%+v", e)
	}
	_, steps, _, err := b.Steps(ctx, b.Workspace, id, -1)
	b.Must(err)
	last := steps[len(steps)-1]
	if last.Event != "exited" || last.Data["note"] != "called us" || last.Data["by"] != "manual" || last.Step != e.Step {
		t.Errorf("%+v", last)
	}
	if steps[2].Event != "sent" || steps[2].NotificationID == "" {
		t.Errorf("%+v", steps[2])
	}
	_, err = b.Exit(ctx, b.Workspace, id, "")
	if e := b.Wants(lemma.WrongStatus, err); e.Status != enrollment.Exited || e.Allowed == nil {
		t.Errorf("%+v", e)
	}
	_, err = b.Exit(ctx, b.Workspace, lemma.NewID(), "")
	b.Wants(lemma.NotFound, err)
	_, err = b.Exit(ctx, b.Workspace, id, strings.Repeat("é", 2001))
	b.Wants(lemma.Invalid, err)
	_, err = b.Exit(ctx, b.Workspace, id, strings.Repeat("é", 2000)) // characters, not bytes
	b.Wants(lemma.WrongStatus, err)
	if _, err := b.Exit(ctx, lemma.NewID(), id, ""); lemma.KindOf(err) != lemma.NotFound {
		t.Errorf("another workspace ends it: %v", err)
	}
}

func TestManualMove(t *testing.T) {
	b := setup(t, 1)
	ctx := context.Background()
	flow := b.Live(flowstest.Welcome)
	b.PublishNext(flow, strings.ReplaceAll(flowstest.Welcome, "P3D", "P4D"), flows.InFlight{})
	_, err := b.CreateVersion(ctx, b.Workspace, flow, b.Definition(flowstest.Welcome))
	b.Must(err)
	b.RecordEvent("c1", "signed_up")
	b.Settle()
	was := b.Enrollment(flow, "c1")

	e, err := b.Move(ctx, b.Workspace, was.ID, new(1), "wait") // a day shorter
	b.Must(err)
	if e.Version != 1 || e.Node != "wait" || !e.ResumeAt.Equal(was.ResumeAt.Add(-24*time.Hour)) {
		t.Errorf("%+v", e)
	}
	e, err = b.Move(ctx, b.Workspace, was.ID, nil, "hello") // back to the message, which is not sent twice
	b.Must(err)
	if e.Version != 1 || e.Node != "hello" || e.Status != enrollment.Active {
		t.Errorf("%+v", e)
	}
	b.Settle()
	if n := b.Notifications(); n != 1 || !strings.Contains(b.Trace(was.ID), "moved@hello skipped@hello") {
		t.Errorf("%d messages: %s", n, b.Trace(was.ID))
	}
	for name, c := range map[string]struct {
		version *int
		node    string
		faults  string
	}{
		"no node":           {nil, "", "/node required"},
		"no such node":      {nil, "x", "/node unknown_node"},
		"a draft":           {new(3), "wait", "/version unknown_version"},
		"no such version":   {new(9), "wait", "/version unknown_version"},
		"far from any":      {new(1 << 40), "wait", "/version unknown_version"},
		"before the first":  {new(-1), "wait", "/version unknown_version"},
		"entry, by its key": {new(1), " ", "/node unknown_node"},
	} {
		_, err := b.Move(ctx, b.Workspace, was.ID, c.version, c.node)
		if e := b.Wants(lemma.Invalid, err); flowstest.Pointers(e) != c.faults {
			t.Errorf("%s: %s", name, flowstest.Pointers(e))
		}
	}
	_, err = b.Move(ctx, b.Workspace, lemma.NewID(), nil, "wait")
	b.Wants(lemma.NotFound, err)

	// An open move would move the enrollment back.
	_, err = b.Rollback(ctx, b.Workspace, flow, nil, nil, flows.InFlight{Mode: "move"}, nil)
	b.Must(err)
	_, err = b.Move(ctx, b.Workspace, was.ID, new(2), "wait")
	if e := b.Wants(lemma.Conflict, err); e.Code != "move_open" {
		t.Error(e)
	}
	_, err = b.Exit(ctx, b.Workspace, was.ID, "")
	b.Must(err)
	_, err = b.Move(ctx, b.Workspace, was.ID, nil, "wait")
	b.Wants(lemma.WrongStatus, err)
}

func TestEnrollmentsAreListed(t *testing.T) {
	b := setup(t, 4)
	ctx := context.Background()
	flow, other := b.Live(flowstest.Welcome), b.Live(strings.ReplaceAll(flowstest.Minimal, "hi", "signed_up"))
	for _, c := range []string{"c1", "c2", "c3"} {
		b.RecordEvent(c, "signed_up")
	}
	b.Settle()
	b.RecordEvent("c4", "signed_up")
	_, err := b.Exit(ctx, b.Workspace, b.Enrollment(flow, "c3").ID, "")
	b.Must(err)
	for name, c := range map[string]struct {
		filter query.EnrollmentFilter
		want   int
	}{
		"all enrollments":  {query.EnrollmentFilter{}, 8},
		"a flow's":         {query.EnrollmentFilter{FlowID: &flow}, 4},
		"a profile's":      {query.EnrollmentFilter{ProfileKey: "c1"}, 2},
		"active":           {query.EnrollmentFilter{FlowID: &flow, Status: "active"}, 3},
		"waiting":          {query.EnrollmentFilter{FlowID: &flow, Status: "waiting"}, 2},
		"exited":           {query.EnrollmentFilter{Status: "exited"}, 1},
		"completed":        {query.EnrollmentFilter{FlowID: &other, Status: "completed"}, 3},
		"on a node":        {query.EnrollmentFilter{FlowID: &flow, Node: "wait"}, 3},
		"of a version":     {query.EnrollmentFilter{FlowID: &flow, Version: 1}, 4},
		"of a huge number": {query.EnrollmentFilter{FlowID: &flow, Version: 1 << 40}, 0},
	} {
		all := pgtest.Pages(t, 2, func(cursor string) ([]query.Enrollment, string, error) {
			return b.ListEnrollments(ctx, b.Workspace, c.filter, page.Query{Limit: 2, Cursor: cursor})
		})
		if len(all) != c.want || !slices.IsSortedFunc(all,
			func(a, b query.Enrollment) int { return strings.Compare(b.ID.String(), a.ID.String()) }) {
			t.Errorf("%s: %d", name, len(all))
		}
	}
	_, _, err = b.ListEnrollments(ctx, b.Workspace, query.EnrollmentFilter{Status: "lost"}, page.Query{Limit: 2})
	b.Wants(lemma.Invalid, err)
	_, _, err = b.ListEnrollments(ctx, b.Workspace, query.EnrollmentFilter{}, page.Query{Limit: 2, Cursor: "enr_"})
	b.Wants(lemma.Invalid, err)
	_, err = b.GetEnrollment(ctx, b.Workspace, flow)
	b.Wants(lemma.NotFound, err)
	_, steps, _, err := b.Steps(ctx, lemma.NewID(), b.Enrollment(flow, "c1").ID, -1)
	b.Wants(lemma.NotFound, err)
	if len(steps) > 0 {
		t.Errorf("steps of another workspace: %v", steps)
	}
}

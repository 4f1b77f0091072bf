package flows

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"lemma"
	"lemma/flows/graph"
)

func TestExitByHand(t *testing.T) {
	b := setup(t, 1)
	ctx := context.Background()
	flow := b.live(welcome)
	b.tell("c1", "signed_up")
	b.settleDown()
	id := b.enrollment(flow, "c1").ID
	_, err := b.Pause(ctx, b.ws, flow, nil)
	b.must(err)
	e, err := b.Exit(ctx, b.ws, id, "called us")
	b.must(err)
	if e.Status != Exited || e.ExitReason != ExitManual || e.ResumeAt != nil || e.EndedAt == nil {
		t.Errorf("%+v", e)
	}
	_, steps, err := b.Steps(ctx, b.ws, id)
	b.must(err)
	last := steps[len(steps)-1]
	if last.Event != "exited" || last.Data["note"] != "called us" || last.Data["by"] != "hand" || last.Step != e.Step {
		t.Errorf("%+v", last)
	}
	if steps[2].Event != "sent" || steps[2].NotificationID == "" {
		t.Errorf("%+v", steps[2])
	}
	_, err = b.Exit(ctx, b.ws, id, "")
	if e := b.wants(lemma.WrongState, err); e.Status != Exited || e.Allowed == nil {
		t.Errorf("%+v", e)
	}
	_, err = b.Exit(ctx, b.ws, lemma.NewID(), "")
	b.wants(lemma.NotFound, err)
	_, err = b.Exit(ctx, b.ws, id, strings.Repeat("x", 3000))
	b.wants(lemma.Invalid, err)
	if _, err := b.Exit(ctx, lemma.NewID(), id, ""); lemma.KindOf(err) != lemma.NotFound {
		t.Errorf("another workspace ends it: %v", err)
	}
}

func TestMoveByHand(t *testing.T) {
	b := setup(t, 1)
	ctx := context.Background()
	flow := b.live(welcome)
	b.publish(flow, strings.ReplaceAll(welcome, "P3D", "P4D"), InFlight{})
	_, err := b.CreateVersion(ctx, b.ws, flow, b.definition(welcome))
	b.must(err)
	b.tell("c1", "signed_up")
	b.settleDown()
	was := b.enrollment(flow, "c1")

	e, err := b.Move(ctx, b.ws, was.ID, ptr(1), "wait") // a day shorter
	b.must(err)
	if e.Version != 1 || e.Node != "wait" || !e.ResumeAt.Equal(was.ResumeAt.Add(-24*time.Hour)) {
		t.Errorf("%+v", e)
	}
	e, err = b.Move(ctx, b.ws, was.ID, nil, "hello") // back to the letter, which is not sent twice
	b.must(err)
	if e.Version != 1 || e.Node != "hello" || e.Status != Active {
		t.Errorf("%+v", e)
	}
	b.settleDown()
	if n := b.notifications(); n != 1 || !strings.Contains(b.story(was.ID), "moved@hello skipped@hello") {
		t.Errorf("%d letters: %s", n, b.story(was.ID))
	}
	for name, c := range map[string]struct {
		version *int
		node    string
		faults  string
	}{
		"no node":           {nil, "", "/node required"},
		"no such node":      {nil, "x", "/node unknown_node"},
		"a draft":           {ptr(3), "wait", "/version unknown_version"},
		"no such version":   {ptr(9), "wait", "/version unknown_version"},
		"far from any":      {ptr(1 << 40), "wait", "/version unknown_version"},
		"before the first":  {ptr(-1), "wait", "/version unknown_version"},
		"entry, by its key": {ptr(1), " ", "/node unknown_node"},
	} {
		_, err := b.Move(ctx, b.ws, was.ID, c.version, c.node)
		if e := b.wants(lemma.Invalid, err); pointers(e) != c.faults {
			t.Errorf("%s: %s", name, pointers(e))
		}
	}
	_, err = b.Move(ctx, b.ws, lemma.NewID(), nil, "wait")
	b.wants(lemma.NotFound, err)

	// An open move would take her away again.
	_, err = b.Rollback(ctx, b.ws, flow, nil, nil, InFlight{Mode: "move"}, nil)
	b.must(err)
	_, err = b.Move(ctx, b.ws, was.ID, ptr(2), "wait")
	if e := b.wants(lemma.Conflict, err); e.Code != "move_open" {
		t.Error(e)
	}
	_, err = b.Exit(ctx, b.ws, was.ID, "")
	b.must(err)
	_, err = b.Move(ctx, b.ws, was.ID, nil, "wait")
	b.wants(lemma.WrongState, err)
}

func TestEnrollmentsAreListed(t *testing.T) {
	b := setup(t, 4)
	ctx := context.Background()
	flow, other := b.live(welcome), b.live(strings.ReplaceAll(minimal, "hi", "signed_up"))
	for _, c := range []string{"c1", "c2", "c3"} {
		b.tell(c, "signed_up")
	}
	b.settleDown()
	b.tell("c4", "signed_up")
	_, err := b.Exit(ctx, b.ws, b.enrollment(flow, "c3").ID, "")
	b.must(err)
	for name, c := range map[string]struct {
		filter EnrollmentFilter
		want   int
	}{
		"everybody":        {EnrollmentFilter{}, 8},
		"a flow's":         {EnrollmentFilter{FlowID: &flow}, 4},
		"a profile's":      {EnrollmentFilter{ProfileKey: "c1"}, 2},
		"active":           {EnrollmentFilter{FlowID: &flow, Status: "active"}, 3},
		"waiting":          {EnrollmentFilter{FlowID: &flow, Status: "waiting"}, 2},
		"exited":           {EnrollmentFilter{Status: "exited"}, 1},
		"completed":        {EnrollmentFilter{FlowID: &other, Status: "completed"}, 3},
		"on a node":        {EnrollmentFilter{FlowID: &flow, Node: "wait"}, 3},
		"of a version":     {EnrollmentFilter{FlowID: &flow, Version: 1}, 4},
		"of a huge number": {EnrollmentFilter{FlowID: &flow, Version: 1 << 40}, 0},
	} {
		var all []Enrollment
		for cursor := ""; ; {
			page, next, err := b.ListEnrollments(ctx, b.ws, c.filter, lemma.Page{Limit: 2, Cursor: cursor})
			b.must(err)
			all = append(all, page...)
			if cursor = next; next == "" {
				break
			}
		}
		if len(all) != c.want || !slices.IsSortedFunc(all, func(a, b Enrollment) int { return strings.Compare(b.ID.String(), a.ID.String()) }) {
			t.Errorf("%s: %d", name, len(all))
		}
	}
	_, _, err = b.ListEnrollments(ctx, b.ws, EnrollmentFilter{Status: "lost"}, lemma.Page{Limit: 2})
	b.wants(lemma.Invalid, err)
	_, _, err = b.ListEnrollments(ctx, b.ws, EnrollmentFilter{}, lemma.Page{Limit: 2, Cursor: "enr_"})
	b.wants(lemma.Invalid, err)
	_, err = b.GetEnrollment(ctx, b.ws, flow)
	b.wants(lemma.NotFound, err)
	_, _, err = b.Steps(ctx, lemma.NewID(), b.enrollment(flow, "c1").ID)
	b.wants(lemma.NotFound, err)
}

// Every pair of two waits, against a table in words.
func TestTimers(t *testing.T) {
	for name, c := range map[string]struct {
		was, is string
		timer   string
		shift   time.Duration
	}{
		"the same delay, written otherwise": {`{"type":"delay","for":"P1D"}`, `{"type":"delay","for":"PT24H","name":"x"}`, "kept", 0},
		"a delay that became an event":      {`{"type":"delay","for":"P1D"}`, `{"type":"wait_for_event","event":"a","timeout":"P1D"}`, "restarted", 0},
		"another condition":                 {`{"type":"wait_for_event","event":"a","timeout":"P1D"}`, `{"type":"wait_for_event","event":"a","condition":"true","timeout":"P1D"}`, "restarted", 0},
		"another zone":                      {`{"type":"wait_until","time":"09:00"}`, `{"type":"wait_until","time":"09:00","zone":"Asia/Tokyo"}`, "restarted", 0},
		"another date":                      {`{"type":"wait_until","date_column":"a"}`, `{"type":"wait_until","date_column":"b"}`, "restarted", 0},
		"another offset":                    {`{"type":"wait_until","date_column":"a","offset":"P1D"}`, `{"type":"wait_until","date_column":"a"}`, "restarted", 0},
		"a send":                            {`{"type":"send"}`, `{"type":"send"}`, "restarted", 0},
	} {
		var was, is graph.Node
		if err := json.Unmarshal([]byte(c.was), &was); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(c.is), &is); err != nil {
			t.Fatal(err)
		}
		if timer, shift := timerOf(was, is); timer != c.timer || shift != c.shift {
			t.Errorf("%s: %s by %s", name, timer, shift)
		}
	}
}

package query_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"

	"lemma"
	"lemma/flows/enrollment"
	"lemma/flows/flowstest"
	"lemma/flows/query"
)

// seen is the poll of the audience as it is shown, without its times.
func (b *bundle) seen(flow uuid.UUID) *query.AudiencePoll {
	b.T.Helper()
	c, err := b.Counts(bg, b.Workspace, flow, 0)
	b.Must(err)
	return c.AudiencePoll
}

// A row without a usable key does not enroll and has no refusal, since there is no key to
// name: it is counted with the poll.
func TestRowsWithoutAKeyAreReported(t *testing.T) {
	b := setup(t, 2)
	b.ExecDB(`insert into customers (id, email) values ('', 'x@y.example'), (repeat('k', 300), 'z@y.example')`)
	flow := b.Live(flowstest.Polled("once", ""))
	if p := b.seen(flow); p == nil || p.LastAt != nil || p.NextAt == nil || len(p.Refused) != 0 {
		t.Fatalf("before the first poll: %+v", p)
	}
	b.PollOne()
	p := b.seen(flow)
	want := &query.AudiencePoll{RowsRead: 4, Enrolled: 2, Refused: map[string]int64{enrollment.InvalidKey: 2}}
	if d := cmp.Diff(want, p,
		cmpopts.IgnoreFields(query.AudiencePoll{}, "LastAt", "NextAt")); d != "" || p.LastAt == nil || !p.NextAt.After(*p.LastAt) {
		t.Fatalf("%s %+v", d, p)
	}
	b.Must(flowstest.Second(b.Pause(bg, b.Workspace, flow, nil)))
	if p := b.seen(flow); p.NextAt != nil || p.RowsRead != 4 {
		t.Fatalf("paused: %+v", p)
	}
	if p := b.seen(b.Live(flowstest.Welcome)); p != nil {
		t.Fatalf("a flow without a trigger on the audience: %+v", p)
	}
}

// An audience that cannot be read is shown in the counts, and explain does not predict its
// next poll.
func TestAPollThatFailsIsReported(t *testing.T) {
	b := setup(t, 2)
	flow := b.Live(flowstest.Polled("once", ""))
	b.PollOne()
	b.ExecDB(`insert into customers (id) values ('new')`)
	b.whyIs(flow, "new", "The profile is not enrolled: the audience was not polled since it is in it.",
		"The audience was last read at T: 2 rows, 2 enrolled.\nThe next poll of the audience is due at T.",
		"The next poll of the audience would enroll the profile.")

	b.ExecDB(`alter table customers rename column name to nom`)
	for range 2 {
		b.MakePollsDue()
		b.PollOne()
	}
	p := b.seen(flow)
	if p.Failures != 2 || !strings.HasPrefix(p.LastError, "source_changed: ") || p.LastAt == nil || p.RowsRead != 2 || p.NextAt == nil {
		t.Fatalf("%+v", p)
	}
	b.whyIs(flow, "new", "The profile is not enrolled: the audience cannot be polled ("+p.LastError+").",
		"The audience was last read at T: 2 rows, 2 enrolled.\nThe last 2 polls of the audience failed: source_changed: ",
		"The next poll of the audience that succeeds would enroll the profile, if it is in the audience.")

	b.ExecDB(`alter table customers rename column nom to name`)
	b.MakePollsDue()
	b.PollOne()
	if p = b.seen(flow); p.Failures != 0 || p.LastError != "" || p.Enrolled != 1 || p.Refused[enrollment.AlreadyEnrolled] != 2 {
		t.Fatalf("%+v", p)
	}
	b.whyIs(flow, "c1", "The profile is enrolled: enrolled at T in version 1, it has not entered yet and is due.",
		"The audience was last read at T: 3 rows, 1 enrolled, refused 2 as already_enrolled.")
}

// A reason that is only counted with polls is no reason of a refusal.
func TestNoRefusalIsWithoutAPerson(t *testing.T) {
	b := setup(t, 0)
	_, err := b.Pool.Exec(bg, `insert into refusals (workspace_id, flow_id, key, profile_key, reason, source)
		values ($1, $2, $2, '', 'invalid_key', 'audience')`, b.Workspace, lemma.NewID())
	if err == nil || !strings.Contains(err.Error(), "refusals_reason") {
		t.Fatal(err)
	}
}

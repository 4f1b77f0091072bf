package intake_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"lemma/flows"
	"lemma/flows/enrollment"
	"lemma/flows/flowstest"
	"lemma/flows/intake"
	"lemma/pgtest"
)

func (b *bundle) nothingDue() {
	b.T.Helper()
	if was, err := b.PollOnce(context.Background()); was || err != nil {
		b.T.Fatalf("%v %v", was, err)
	}
}

// polledRow is the row that a poll has written.
type polledRow struct {
	Rows, Enrolled *int64
	Refused        map[string]int64
	Failures       int
	LastError      *string
	Free           bool
	In             time.Duration // until the next
}

func (b *bundle) polledRow(flow uuid.UUID) (r polledRow) {
	b.T.Helper()
	var in float64
	b.Must(b.Pool.QueryRow(context.Background(), `
		select rows_read, enrolled, refused, failures, last_error, leased_by is null and lease_until is null, extract(epoch
			from next_at - now())::float8
		from flow_polls where workspace_id = $1 and flow_id = $2`, b.Workspace, flow).Scan(&r.Rows, &r.Enrolled, &r.Refused, &r.Failures,
		&r.LastError, &r.Free, &in))
	r.In = time.Duration(in * float64(time.Second)).Round(time.Minute)
	return r
}

// All profiles of the audience enroll once. Polled again, they are refused, which is
// recorded once however often it happens.
func TestAnAudienceEnrolls(t *testing.T) {
	b := setup(t, 2503)
	b.ExecDB(`insert into customers values ('', 'empty@shop.example'), (repeat('k', 256), 'long@shop.example')`)
	flow := b.Live(flowstest.Polled("once", ""))
	b.PollOne()
	b.nothingDue()
	want := polledRow{Rows: new(int64(2505)), Enrolled: new(int64(2503)), Refused: map[string]int64{enrollment.InvalidKey: 2}, Free: true,
		In: time.Minute}
	if d := cmp.Diff(want, b.polledRow(flow)); d != "" {
		t.Fatal(d)
	}
	b.Settle()
	b.WantCount(2503, `select count(*) from enrollments where workspace_id = $1 and flow_id = $2 and node = 'w' and source = 'audience'`,
		b.Workspace,
		flow)
	for range 3 {
		b.ExecDB(`insert into customers select 'new' || gen_random_uuid(), 'new@shop.example'`)
		b.MakePollsDue()
		b.PollOne()
	}
	r := b.polledRow(flow)
	if *r.Enrolled != 1 || r.Refused[enrollment.AlreadyEnrolled] != 2505 {
		t.Fatalf("%+v", r)
	}
	b.WantCount(2505, `select count(*) from refusals where workspace_id = $1 and flow_id = $2`, b.Workspace, flow)
	b.Invariants()
}

// On another day of the flow's zone the same profiles may enroll again, if their
// enrollments have ended; each day has its own refusal.
func TestAnAudienceEnrollsDaily(t *testing.T) {
	b := setup(t, 2)
	flow := b.Live(flowstest.Polled("daily", ""))
	day := func(start string) {
		t.Helper()
		b.MakePollsDue()
		p, err := b.ClaimPoll(context.Background())
		b.Must(err)
		at, err := time.Parse(time.RFC3339, start)
		p.SetStart(at)
		b.Must(err)
		b.Must(b.Poll(context.Background(), *p))
	}
	day("2026-03-01T10:00:00Z")
	day("2026-03-01T20:00:00Z")
	day("2026-03-01T23:00:00Z")
	b.Settle()
	b.Pass(24 * time.Hour)
	b.Settle()
	day("2026-03-02T01:00:00Z")
	b.WantCount(4, `select count(*) from enrollments where workspace_id = $1 and flow_id = $2`, b.Workspace, flow)
	day("2026-03-02T02:00:00Z")
	b.WantCount(4, `select count(*) from refusals where workspace_id = $1 and flow_id = $2`, b.Workspace, flow)
}

// A profile that the condition excludes is refused without an enrollment, at this poll and
// the next; a profile that changes is admitted.
func TestAnAudienceIsFiltered(t *testing.T) {
	b := setup(t, 10)
	flow := b.Live(flowstest.Polled("once", "profile.country == 'DE'"))
	for range 2 {
		b.MakePollsDue()
		b.PollOne()
		b.Settle()
	}
	r := b.polledRow(flow)
	if *r.Enrolled != 0 || r.Refused[enrollment.Filtered] != 5 || r.Refused[enrollment.AlreadyEnrolled] != 5 {
		t.Fatalf("%+v", r)
	}
	b.WantCount(5, `select count(*) from enrollments where workspace_id = $1 and flow_id = $2`, b.Workspace, flow)
	b.WantCount(5, `select count(*) from refusals where workspace_id = $1 and flow_id = $2 and reason = 'filtered'`, b.Workspace,
		flow)
	b.ExecDB(`update customers set country = 'DE' where id = 'c1'`)
	b.MakePollsDue()
	b.PollOne()
	if n := len(b.Enrollments(flow, "c1")); n != 1 {
		t.Fatalf("%d", n)
	}
}

// A profile with several rows is decided by the first one, once: as the entry and the plan decide it.
func TestAnAudienceWithSeveralRowsOfAProfile(t *testing.T) {
	b := setup(t, 10)
	b.ExecDB(`alter table customers drop constraint customers_pkey`)
	b.ExecDB(`insert into customers (id, email, country) select id, email, case country when 'DE' then 'FR' else 'DE' end from customers`)
	flow := b.Live(flowstest.Polled("once", "profile.country == 'DE'"))
	plan, err := b.Plan(t.Context(), b.Workspace, flow, 1, flows.InFlight{})
	b.Must(err)
	if plan.Enrolls == nil || *plan.Enrolls != 5 {
		t.Errorf("the plan has %v, want 5", plan.Enrolls)
	}
	for _, enrolled := range []int64{5, 0} {
		b.MakePollsDue()
		b.PollOne()
		b.Settle()
		if r := b.polledRow(flow); *r.Rows != 20 || *r.Enrolled != enrolled || r.Refused[enrollment.Filtered] != 5 {
			t.Errorf("%+v", r)
		}
	}
	b.WantCount(5, `select count(*) from enrollments where workspace_id = $1 and flow_id = $2`, b.Workspace, flow)
	b.WantCount(5, `select count(*) from refusals where workspace_id = $1 and flow_id = $2 and reason = 'filtered'`, b.Workspace, flow)
}

// All polls of a workspace that are due are done in one tick, one after the other.
func TestPollsOfAWorkspaceFollowEachOther(t *testing.T) {
	b := setup(t, 3)
	for range 5 {
		b.Live(flowstest.Polled("once", ""))
	}
	b.Must(b.PollDue(context.Background()))
	b.Wait()
	b.WantCount(5, `select count(*) from flow_polls where last_at is not null and leased_by is null`)
}

// A condition cannot be decided for a profile whose row is longer than Lemma reads. The others enroll.
func TestAnAudienceWithARowThatIsTooLarge(t *testing.T) {
	b := setup(t, 10)
	b.ExecDB(`update customers set country = repeat('x', 2000000) where id = 'c3'`)
	flow := b.Live(flowstest.Polled("once", "profile.country != 'nowhere'"))
	plan, err := b.Plan(t.Context(), b.Workspace, flow, 1, flows.InFlight{})
	b.Must(err)
	if plan.Enrolls == nil || *plan.Enrolls != 9 {
		t.Errorf("the plan has %v, want 9", plan.Enrolls)
	}
	for _, enrolled := range []int64{9, 0} {
		b.MakePollsDue()
		b.PollOne()
		if r := b.polledRow(flow); *r.Rows != 10 || *r.Enrolled != enrolled || r.Refused[enrollment.ConditionError] != 1 || r.Failures != 0 {
			t.Errorf("%+v", r)
		}
	}
	b.WantCount(1, `select count(*) from refusals where workspace_id = $1 and flow_id = $2 and profile_key = 'c3'
		and reason = 'condition_error' and detail like '%too large%'`, b.Workspace, flow)
}

// A source that fails delays only its own flow, longer each time, and the counts explain
// it. It recovers by itself.
func TestAnAudienceThatCannotBeRead(t *testing.T) {
	b := setup(t, 3, func(c *flows.Config) { c.BackOff, c.MaxBackOff = time.Hour, 3*time.Hour })
	broken := b.Live(flowstest.Polled("once", ""))
	b.ExecDB(`alter table customers rename to gone`)
	b.PollOne()
	b.nothingDue()
	r := b.polledRow(broken)
	if r.Failures != 1 || r.LastError == nil || !strings.HasPrefix(*r.LastError,
		"source_changed") || !r.Free || r.In < time.Hour || r.In > 2*time.Hour {
		t.Fatalf("%+v", r)
	}
	b.MakePollsDue()
	b.PollOne()
	if r = b.polledRow(broken); r.Failures != 2 || r.In < 2*time.Hour {
		t.Fatalf("%+v", r)
	}
	b.ExecDB(`alter table gone rename to customers`)
	b.MakePollsDue()
	b.PollOne()
	if r = b.polledRow(broken); r.Failures != 0 || r.LastError != nil || *r.Enrolled != 3 || r.In != time.Minute {
		t.Fatalf("%+v", r)
	}
}

// A pause, an archive and another version stop a poll between two chunks: nothing enrolls
// after their answer.
func TestAPollStops(t *testing.T) {
	for name, verb := range map[string]func(b *bundle, flow uuid.UUID) error{
		"pause": func(b *bundle, flow uuid.UUID) error {
			return flowstest.Second(b.Pause(context.Background(), b.Workspace, flow, nil))
		},
		"archive": func(b *bundle, flow uuid.UUID) error {
			return flowstest.Second(b.Archive(context.Background(), b.Workspace, flow, nil))
		},
		"publish": func(b *bundle, flow uuid.UUID) error {
			b.PublishNext(flow, strings.Replace(flowstest.Polled("once", ""), "P1D", "P2D", 1), flows.InFlight{})
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 2500)
			flow := b.Live(flowstest.Polled("once", ""))
			chunks := 0
			b.Hook.Do = func(stage string) {
				if stage == "poll: chunk" {
					if chunks++; chunks == 2 {
						b.Must(verb(b, flow))
					}
				}
			}
			b.PollOne()
			b.Hook.Do = nil
			b.WantCount(intake.PollChunk, `select count(*) from enrollments where workspace_id = $1 and flow_id = $2`, b.Workspace, flow)
			b.WantCount(0, `select count(*) from refusals where workspace_id = $1`, b.Workspace)
			r := b.polledRow(flow)
			if r.Rows != nil || !r.Free || r.Failures != 0 || r.In != 0 {
				t.Fatalf("%+v", r)
			}
			if name == "publish" { // the new version is polled at once
				b.PollOne()
				b.WantCount(1500, `select count(*) from enrollments where workspace_id = $1 and version = 2`, b.Workspace)
				return
			}
			b.nothingDue()
		})
	}
}

func (b *bundle) nothingDueFor(f *flowstest.Process) {
	if was, err := f.PollOnce(context.Background()); was || err != nil {
		b.T.Errorf("%v %v", was, err)
	}
}

// A tick starts polls and does not wait for them; a second one of the same workspace waits
// for a later tick.
func TestATickDoesNotWaitForPolls(t *testing.T) {
	b := setup(t, 3)
	for range 3 {
		b.Live(flowstest.Polled("once", ""))
	}
	at, leave := make(chan struct{}, 9), make(chan struct{})
	b.Hook.Do = func(stage string) {
		if stage == "poll: chunk" {
			at <- struct{}{}
			<-leave
		}
	}
	b.Must(b.PollDue(context.Background()))
	<-at
	b.Must(b.PollDue(context.Background()))
	b.WantCount(1, `select count(*) from flow_polls where workspace_id = $1 and leased_by is not null`, b.Workspace)
	close(leave)
	b.Wait()
	for range 2 {
		b.Must(b.PollDue(context.Background()))
		b.Wait()
	}
	b.WantCount(9, `select count(*) from enrollments where workspace_id = $1`, b.Workspace)
}

// A process polls one audience of a workspace at a time, and eight in all.
func TestPollsOfManyWorkspaces(t *testing.T) {
	b := setup(t, 1)
	audiences, add := b.Patient()
	b.Deps.Audiences = audiences
	b.Process = b.Another()
	own := b.Workspace
	for range intake.PollAtOnce + 1 {
		b.Workspace = pgtest.Workspace(t, b.Pool)
		b.Audience = add(b.Workspace)
		b.Live(flowstest.Polled("once", ""))
		b.Live(flowstest.Polled("once", ""))
	}
	b.Workspace = own
	at, leave := make(chan struct{}, 99), make(chan struct{})
	b.Hook.Do = func(stage string) {
		if stage == "poll: chunk" {
			at <- struct{}{}
			<-leave
		}
	}
	b.Must(b.PollDue(context.Background()))
	for range intake.PollAtOnce {
		select {
		case <-at:
		case <-time.After(5 * time.Second):
		}
	}
	var polls, workspaces int
	b.Must(b.Pool.QueryRow(context.Background(),
		`select count(*), count(distinct workspace_id) from flow_polls where leased_by is not null`).Scan(&polls, &workspaces))
	if polls != intake.PollAtOnce || workspaces != intake.PollAtOnce {
		t.Errorf("%d polls of %d workspaces", polls, workspaces)
	}
	close(leave)
	b.Wait()
	for range 3 {
		b.Must(b.PollDue(context.Background()))
		b.Wait()
	}
	b.Must(b.Pool.QueryRow(context.Background(), `select count(*) from flow_polls where last_at is not null`).Scan(&polls))
	if polls != 2*(intake.PollAtOnce+1) {
		t.Errorf("%d polls ran in the end", polls)
	}
}

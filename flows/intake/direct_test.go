package intake_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/flows/enrollment"
	"lemma/flows/flowstest"
	"lemma/flows/intake"
	"lemma/pgtest"
)

// reasons are the reasons of a profile's refusals, newest first.
func (b *bundle) reasons(flow any, profile string) string {
	b.T.Helper()
	return pgtest.One[string](b.T, b.Pool, `
		select coalesce(string_agg(reason, ' ' order by at desc), '') from refusals where workspace_id = $1 and flow_id = $2
			and profile_key = $3`,
		b.Workspace, flow, profile)
}

// A direct request that was refused at its entry may be repeated, and is then found by its
// new enrollment. Two concurrent repetitions enroll once.
func TestADirectRequestRefusedAtEntryIsRepeated(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(strings.Replace(flowstest.Welcome, `"once"},`, `"daily"},"overlap":"allow",`, 1))
	reported := func(f *flowstest.Process, day time.Time) func() error {
		return func() error {
			r, err := f.Enroll(bg, b.Workspace, flow, intake.Enrolling{ProfileKey: "new", ID: "order-1", OccurredAt: day}, false)
			if err == nil && (r.EnrollmentID == nil || r.Outcome != enrollment.Enrolled &&
				(r.Reason != enrollment.AlreadyEnrolled || r.Detail != "this id has already enrolled a profile")) {
				err = fmt.Errorf("%+v", r)
			}
			return err
		}
	}
	b.Must(reported(b.Process, time.Now())())
	b.Settle()
	if e := b.Enrollment(flow, "new"); e.Status != enrollment.Refused {
		t.Fatalf("%+v", e)
	}
	b.ExecDB(`insert into customers (id, email, name) values ('new', 'n@shop.example', 'N')`)
	f, seen := b.Traced()
	reached, leave := make(chan struct{}), make(chan struct{})
	seen.Stop = func(sql string) {
		if strings.Contains(sql, "insert into enrollments") {
			close(reached)
			<-leave
		}
	}
	first := flowstest.Start(reported(f, time.Now()))
	select {
	case <-reached:
	case <-first.Done:
		t.Fatalf("it does not enroll: %v", first.Err)
	}
	second := flowstest.Start(reported(b.Process, time.Now().Add(-24*time.Hour))) // of another day: the recurrence would admit it
	b.Until(0, second.Done)
	close(leave)
	<-first.Done
	<-second.Done
	b.Must(first.Err)
	b.Must(second.Err)
	b.Settle()
	b.Must(reported(b.Process, time.Now().Add(-24*time.Hour))())
	b.WantCount(1, `select count(*) from enrollments where workspace_id = $1 and status = 'active'`, b.Workspace)
	if got := b.reasons(flow, "new"); got != enrollment.NoProfile {
		t.Error(got)
	}
	b.Invariants()
}

// A repetition of a request without an id, whose answer was lost, gets the first result,
// whatever happened to its enrollment. If it was refused, it is refused once.
func TestADirectRequestIsRepeated(t *testing.T) {
	b := setup(t, 0)
	flow := b.Live(flowstest.Welcome)
	ask := func() intake.Result {
		t.Helper()
		r, err := b.Enroll(bg, b.Workspace, flow, intake.Enrolling{ProfileKey: "missing", Retry: "r"}, false)
		b.Must(err)
		return r
	}
	_, err := b.Pause(bg, b.Workspace, flow, nil)
	b.Must(err)
	if one, two := ask(), ask(); one != two || one.Reason != enrollment.IsPaused {
		t.Errorf("%+v, %+v", one, two)
	}
	_, err = b.Resume(bg, b.Workspace, flow, new(time.Duration(0)), nil)
	b.Must(err)
	first := ask()
	b.Settle()
	if r := ask(); first.Outcome != enrollment.Enrolled || r.Outcome != enrollment.Enrolled || *r.EnrollmentID != *first.EnrollmentID {
		t.Errorf("%+v, %+v", first, r)
	}
	if got, want := b.reasons(flow, "missing"), enrollment.NoProfile+" "+enrollment.IsPaused; got != want {
		t.Errorf("%s, not %s", got, want)
	}
}

// A repeated request is refused for its current reason.
func TestADirectRequestIsRefusedForAnotherReason(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(flowstest.Welcome)
	enroll := func(want string) {
		t.Helper()
		r, err := b.Enroll(bg, b.Workspace, flow, intake.Enrolling{ProfileKey: "c1", ID: "x"}, false)
		b.Must(err)
		if r.Reason != want {
			t.Errorf("%+v", r)
		}
	}
	_, err := b.Pause(bg, b.Workspace, flow, nil)
	b.Must(err)
	enroll(enrollment.IsPaused)
	_, err = b.Resume(bg, b.Workspace, flow, new(time.Duration(0)), nil)
	b.Must(err)
	b.RecordEvent("c1", "signed_up")
	enroll(enrollment.AlreadyEnrolled)
	_, err = b.Pause(bg, b.Workspace, flow, nil)
	b.Must(err)
	enroll(enrollment.IsPaused)
	if got, want := b.reasons(flow, "c1"), strings.Join([]string{enrollment.IsPaused, enrollment.AlreadyEnrolled, enrollment.IsPaused},
		" "); got != want {
		t.Errorf("%s, not %s", got, want)
	}
}

// Of two requests with one id in a bulk the second gets the result of the first.
func TestADirectRequestTwiceInABulk(t *testing.T) {
	b := setup(t, 2)
	flow := b.Live(flowstest.Welcome)
	twice := []intake.Enrolling{{ProfileKey: "c1", ID: "x"}, {ProfileKey: "c1", ID: "x"}, {ProfileKey: "c2", ID: "x"}}
	reported := func() (all []string) {
		t.Helper()
		done, err := b.EnrollAll(bg, b.Workspace, flow, twice, false)
		b.Must(err)
		for _, r := range done {
			text := r.Outcome + " " + r.Reason
			if r.Err != nil {
				text = string(lemma.KindOf(r.Err))
			}
			all = append(all, strings.TrimSpace(text))
		}
		if a, b := done[0].EnrollmentID, done[1].EnrollmentID; (a == nil) != (b == nil) || a != nil && *a != *b {
			t.Errorf("%v is not %v", a, b)
		}
		return all
	}
	wants := func(want ...string) {
		t.Helper()
		if got := reported(); strings.Join(got, ", ") != strings.Join(want, ", ") {
			t.Errorf("%q, not %q", got, want)
		}
	}
	_, err := b.Pause(bg, b.Workspace, flow, nil)
	b.Must(err)
	wants("refused paused", "refused paused", "conflict")
	_, err = b.Resume(bg, b.Workspace, flow, new(time.Duration(0)), nil)
	b.Must(err)
	wants("enrolled", "refused already_enrolled", "conflict")
	wants("refused already_enrolled", "refused already_enrolled", "conflict")
}

// The enrollments of requests are found one by one, however many enrollments the flow has,
// and by one statement for all.
func TestWhatRequestsHaveMadeIsFoundByIndex(t *testing.T) {
	b := setup(t, 0)
	flow := b.Live(strings.Replace(flowstest.HourAfter("go"), `"once"`, `"per_event"`, 1))
	const people, asked = 20_000, 50
	b.Exec(`insert into enrollments (workspace_id, id, flow_id, version, shard, uniqueness_key, overlap_key, profile_key, node,
		source, status, ended_at, resume_at)
		select $1, i, $2, 1, 0, i, i, 'p' || s, 'end', 'direct', case s % 2 when 0 then 'active' else 'refused' end,
			case s % 2 when 1 then now() end, case s % 2 when 0 then now() + interval '1 day' end
		from (select gen_random_uuid() i, s from generate_series(1, $3::int) s) x`, b.Workspace, flow, people)
	b.CountEnded(flow)
	var all []intake.Enrolling
	for i := range asked {
		all = append(all, intake.Enrolling{ProfileKey: fmt.Sprint("q", i), ID: fmt.Sprint(i)})
	}
	_, err := b.EnrollAll(bg, b.Workspace, flow, all, false)
	b.Must(err)
	for _, known := range []bool{false, true} {
		if known {
			b.Exec(`analyze`)
		}
		tx, err := b.Pool.Begin(bg)
		b.Must(err)
		before := read(b, tx)
		done, err := b.AnswerAgain(bg, tx, b.Workspace, flow, all)
		b.Must(err)
		if n := read(b, tx) - before; n > 10*asked {
			t.Errorf("%d rows of enrollments are read for %d requests (statistics: %v)", n, asked, known)
		}
		if r := done[asked-1].Results; len(r) != 1 || r[0].EnrollmentID == nil {
			t.Errorf("%+v", r)
		}
		b.Must(tx.Rollback(bg))
	}
}

// read is the number of rows of enrollments that a transaction has read.
func read(b *bundle, tx pgx.Tx) (n int) {
	b.T.Helper()
	b.Must(tx.QueryRow(bg, `select seq_tup_read + idx_tup_fetch from pg_stat_xact_user_tables where relname = 'enrollments'`).Scan(&n))
	return n
}

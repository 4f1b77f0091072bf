package flows

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"lemma"
)

// reasons are those of a profile's refusals, newest first.
func (b *bundle) reasons(flow any, profile string) string {
	b.t.Helper()
	var text string
	b.must(b.pool.QueryRow(bg, `
		select coalesce(string_agg(reason, ' ' order by at desc), '') from refusals where workspace_id = $1 and flow_id = $2 and profile_key = $3`,
		b.ws, flow, profile).Scan(&text))
	return text
}

// A direct request that was refused when it entered has enrolled nobody: it may
// be told again, and is then known by its new enrollment. Two who tell it at the
// same time enroll once.
func TestADirectRequestRefusedAtTheDoorIsToldAgain(t *testing.T) {
	b := setup(t, 1)
	flow := b.live(strings.Replace(welcome, `"once"},`, `"daily"},"overlap":"allow",`, 1))
	told := func(f *Flows, day time.Time) func() error {
		return func() error {
			r, err := f.Enroll(bg, b.ws, flow, Enrolling{ProfileKey: "new", ID: "order-1", OccurredAt: day}, false)
			if err == nil && (r.EnrollmentID == nil || r.Outcome != Enrolled && (r.Reason != AlreadyEnrolled || r.Detail != toldBefore)) {
				err = fmt.Errorf("%+v", r)
			}
			return err
		}
	}
	b.must(told(b.Flows, time.Now())())
	b.settleDown()
	if e := b.enrollment(flow, "new"); e.Status != statusRefused {
		t.Fatalf("%+v", e)
	}
	b.run(b.shop, `insert into customers (id, email, name) values ('new', 'n@shop.example', 'N')`)
	f, seen := b.traced()
	reached, leave := make(chan struct{}), make(chan struct{})
	seen.stop = func(sql string) {
		if strings.Contains(sql, "insert into enrollments") {
			close(reached)
			<-leave
		}
	}
	first := start(told(f, time.Now()))
	select {
	case <-reached:
	case <-first.done:
		t.Fatalf("it enrolls nobody: %v", first.err)
	}
	second := start(told(b.Flows, time.Now().Add(-24*time.Hour))) // of another day: the recurrence would let it in
	b.until(0, second.done)
	close(leave)
	<-first.done
	<-second.done
	b.must(first.err)
	b.must(second.err)
	b.settleDown()
	b.must(told(b.Flows, time.Now().Add(-24*time.Hour))())
	if n := b.count(`select count(*) from enrollments where workspace_id = $1 and status = 'active'`); n != 1 {
		t.Errorf("%d are on the way", n)
	}
	if got := b.reasons(flow, "new"); got != NoProfile {
		t.Error(got)
	}
	b.invariants()
}

// A repetition of a request without an id, whose answer was lost, is answered as
// the first was, whatever has become of its enrollment; refused, it is refused
// once.
func TestADirectRequestIsRepeated(t *testing.T) {
	b := setup(t, 0)
	flow := b.live(welcome)
	ask := func() Result {
		t.Helper()
		r, err := b.Enroll(bg, b.ws, flow, Enrolling{ProfileKey: "nobody", Retry: "r"}, false)
		b.must(err)
		return r
	}
	_, err := b.Pause(bg, b.ws, flow, nil)
	b.must(err)
	if one, two := ask(), ask(); one != two || one.Reason != IsPaused {
		t.Errorf("%+v, %+v", one, two)
	}
	_, err = b.Resume(bg, b.ws, flow, ptr(time.Duration(0)), nil)
	b.must(err)
	first := ask()
	b.settleDown()
	if r := ask(); first.Outcome != Enrolled || r.Outcome != Enrolled || *r.EnrollmentID != *first.EnrollmentID {
		t.Errorf("%+v, %+v", first, r)
	}
	if got, want := b.reasons(flow, "nobody"), NoProfile+" "+IsPaused; got != want {
		t.Errorf("%s, not %s", got, want)
	}
}

// A request that is told again is refused for what stands in its way now.
func TestADirectRequestIsRefusedForAnotherReason(t *testing.T) {
	b := setup(t, 1)
	flow := b.live(welcome)
	enroll := func(want string) {
		t.Helper()
		r, err := b.Enroll(bg, b.ws, flow, Enrolling{ProfileKey: "c1", ID: "x"}, false)
		b.must(err)
		if r.Reason != want {
			t.Errorf("%+v", r)
		}
	}
	_, err := b.Pause(bg, b.ws, flow, nil)
	b.must(err)
	enroll(IsPaused)
	_, err = b.Resume(bg, b.ws, flow, ptr(time.Duration(0)), nil)
	b.must(err)
	b.tell("c1", "signed_up")
	enroll(AlreadyEnrolled)
	_, err = b.Pause(bg, b.ws, flow, nil)
	b.must(err)
	enroll(IsPaused)
	if got, want := b.reasons(flow, "c1"), strings.Join([]string{IsPaused, AlreadyEnrolled, IsPaused}, " "); got != want {
		t.Errorf("%s, not %s", got, want)
	}
}

// Of two requests with one id in a bulk the second is answered what came of the
// first.
func TestADirectRequestTwiceInABulk(t *testing.T) {
	b := setup(t, 2)
	flow := b.live(welcome)
	twice := []Enrolling{{ProfileKey: "c1", ID: "x"}, {ProfileKey: "c1", ID: "x"}, {ProfileKey: "c2", ID: "x"}}
	told := func() (all []string) {
		t.Helper()
		done, err := b.EnrollAll(bg, b.ws, flow, twice, false)
		b.must(err)
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
		if got := told(); strings.Join(got, ", ") != strings.Join(want, ", ") {
			t.Errorf("%q, not %q", got, want)
		}
	}
	_, err := b.Pause(bg, b.ws, flow, nil)
	b.must(err)
	wants("refused paused", "refused paused", "conflict")
	_, err = b.Resume(bg, b.ws, flow, ptr(time.Duration(0)), nil)
	b.must(err)
	wants("enrolled", "refused already_enrolled", "conflict")
	wants("refused already_enrolled", "refused already_enrolled", "conflict")
}

// What requests have made is found one by one, beside however many people the
// flow has had, and by one statement for all.
func TestWhatRequestsHaveMadeIsFoundByIndex(t *testing.T) {
	b := setup(t, 0)
	flow := b.live(strings.Replace(hourAfter("go"), `"once"`, `"per_event"`, 1))
	const people, asked = 20_000, 50
	b.run(b.pool, `insert into enrollments (workspace_id, id, flow_id, version, turn, uniqueness_key, slot, profile_key, node, source, status, ended_at, resume_at)
		select $1, i, $2, 1, 0, i, i, 'p' || s, 'end', 'direct', case s % 2 when 0 then 'active' else 'refused' end,
			case s % 2 when 1 then now() end, case s % 2 when 0 then now() + interval '1 day' end
		from (select gen_random_uuid() i, s from generate_series(1, $3::int) s) x`, b.ws, flow, people)
	var all []Enrolling
	for i := range asked {
		all = append(all, Enrolling{ProfileKey: fmt.Sprint("q", i), ID: fmt.Sprint(i)})
	}
	_, err := b.EnrollAll(bg, b.ws, flow, all, false)
	b.must(err)
	for _, known := range []bool{false, true} {
		if known {
			b.run(b.pool, `analyze`)
		}
		tx, err := b.pool.Begin(bg)
		b.must(err)
		before := read(b, tx)
		o := make([]*occurrence, asked)
		for i, e := range all {
			o[i], err = e.occurrence(flow)
			b.must(err)
		}
		take := &take{Flows: b.Flows, tx: tx, ws: b.ws}
		fresh, err := take.keepDirect(bg, flow, o)
		b.must(err)
		done := make([]Recorded, asked)
		b.must(take.answerAgain(bg, flow, o, fresh, done))
		if n := read(b, tx) - before; n > 10*asked {
			t.Errorf("%d rows of enrollments are read for %d requests (statistics: %v)", n, asked, known)
		}
		if r := done[asked-1].Results; len(r) != 1 || r[0].EnrollmentID == nil {
			t.Errorf("%+v", r)
		}
		b.must(tx.Rollback(bg))
	}
}

// read is how many rows of enrollments a transaction has read.
func read(b *bundle, tx pgx.Tx) (n int) {
	b.t.Helper()
	b.must(tx.QueryRow(bg, `select seq_tup_read + idx_tup_fetch from pg_stat_xact_user_tables where relname = 'enrollments'`).Scan(&n))
	return n
}

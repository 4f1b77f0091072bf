package intake_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"lemma/flows/flowstest"
	"lemma/flows/intake"
	"lemma/pgtest"
)

// An event that is recorded while its profile is being enrolled finds the enrollment or
// precedes it, whichever transaction is first.
func TestAnEventBesideAnEnrollment(t *testing.T) {
	for name, nodes := range map[string]string{
		"an exit": `"exit_on":[{"event":"bought","goal":true}],"start":"w","nodes":{"w":{"type":"delay","for":"P3D","next":"end"},
			"end":{"type":"exit"}}}`,
		"a wait": `"start":"w","nodes":{"w":{"type":"wait_for_event","event":"bought","timeout":"P3D","next":"end","on_timeout":"end"},
			"end":{"type":"exit"}}}`,
	} {
		text := `{"triggers":[{"type":"event","event":"signed_up"}],"recurrence":{"policy":"once"},` + nodes
		for _, first := range []string{"signed_up", "bought"} {
			for _, how := range []string{"event", "direct"} {
				t.Run(name+", first "+first+", "+how, func(t *testing.T) {
					b := setup(t, 1)
					flow := b.Live(text)
					enroll := func() error {
						if how == "direct" {
							return flowstest.Second(b.Enroll(bg, b.Workspace, flow, intake.Enrolling{ProfileKey: "c1", ID: "1"}, false))
						}
						return flowstest.Second(b.Record(bg, b.Workspace, intake.Event{ProfileKey: "c1", Name: "signed_up"}))
					}
					buy := func() error {
						return flowstest.Second(b.Record(bg, b.Workspace, intake.Event{ProfileKey: "c1", Name: "bought"}))
					}
					var held pgx.Tx
					then := buy
					if first == "signed_up" && how == "direct" {
						held = b.holdDirect(flow, "c1")
					} else {
						held, _ = b.holdTrigger(intake.Event{ProfileKey: "c1", Name: first})
					}
					if first == "bought" {
						then = enroll
					}
					task := flowstest.Start(then)
					b.WaitForLocks(1)
					b.Must(held.Commit(bg))
					<-task.Done
					b.Must(task.Err)
					b.Settle()
					e := b.Enrollment(flow, "c1")
					since := pgtest.One[bool](b.T, b.Pool, `select received_at > $2 from trigger_events where workspace_id = $1 and name = 'bought'`,
						b.Workspace, e.EnrolledAt)
					if met := e.EndedAt != nil; since != (first == "signed_up") || met != since {
						t.Errorf("since the enrollment: %v, and the event found it: %v: %+v", since, met, e)
					}
					if how == "direct" { // repeated, it is found by the same time
						if r, err := b.Enroll(bg, b.Workspace, flow, intake.Enrolling{ProfileKey: "c1", ID: "1"},
							false); first == "bought" && (err != nil || r.EnrollmentID == nil || *r.EnrollmentID != e.ID) {
							t.Errorf("%+v, %v", r, err)
						}
					}
				})
			}
		}
	}
}

// An enrollment that is inserted after an event begins after it, however long ago its
// request began: an event that did not find it does not count for it.
func TestAnEnrollmentBeginsAtItsAppliedTime(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(`{"triggers":[{"type":"event","event":"signed_up"}],"recurrence":{"policy":"once"},
		"exit_on":[{"event":"bought","goal":true}],
		"start":"w","nodes":{"w":{"type":"delay","for":"P3D","next":"end"},"end":{"type":"exit"}}}`)
	slow, err := b.Pool.Begin(bg) // its time is now
	b.Must(err)
	defer func() { _ = slow.Rollback(bg) }()
	b.Must(slow.QueryRow(bg, `select 1`).Scan(new(int)))
	bought, _ := b.holdTrigger(intake.Event{ProfileKey: "c1", Name: "bought"})
	task := flowstest.Start(func() error {
		return flowstest.Second(b.RecordIn(bg, slow, b.Workspace, intake.Event{ProfileKey: "c1", Name: "signed_up"}))
	})
	b.WaitForLocks(1)
	b.Must(bought.Commit(bg))
	<-task.Done
	b.Must(task.Err)
	b.Must(slow.Commit(bg))
	e := b.Enrollment(flow, "c1")
	if n := b.Count(`select count(*) from trigger_events where workspace_id = $1 and name = 'bought' and received_at > $2`, b.Workspace,
		e.EnrolledAt); n != 0 || e.EndedAt != nil {
		t.Errorf("the enrollment began at %s, and a later event did not end it", e.EnrolledAt)
	}
}

// Flows that listen only to their triggers lock profiles in share mode: their events do not wait for
// each other.
func TestProfilesOfFlowsThatDoNotListen(t *testing.T) {
	b := setup(t, 1)
	b.Live(flowstest.HourAfter("go"))
	held, _ := b.holdTrigger(intake.Event{ProfileKey: "c1", Name: "go"})
	for mode, want := range map[string]int{"ShareLock": 1, "ExclusiveLock": 0} {
		b.WantCount(want, `select count(*) from pg_locks where locktype = 'advisory' and objsubid = 2 and mode = $1
			and database = (select oid from pg_database where datname = current_database())`, mode)
	}
	b.Must(held.Commit(bg))
}

// holdDirect has enrolled directly, in an open transaction.
func (b *bundle) holdDirect(flow [16]byte, profile string) pgx.Tx {
	b.T.Helper()
	tx, err := b.Pool.Begin(bg)
	b.Must(err)
	b.T.Cleanup(func() { _ = tx.Rollback(bg) })
	b.Must(b.EnrollIn(bg, tx, b.Workspace, flow, intake.Enrolling{ProfileKey: profile}))
	return tx
}

package flows

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// An event that is told while its profile is being enrolled meets the journey,
// whichever of the two is done first: neither sees the other before it is there.
func TestAnEventBesideAnEnrollment(t *testing.T) {
	for name, nodes := range map[string]string{
		"an exit": `"exit_on":[{"event":"bought","goal":true}],"start":"w","nodes":{"w":{"type":"delay","for":"P3D","next":"end"},"end":{"type":"exit"}}}`,
		"a wait":  `"start":"w","nodes":{"w":{"type":"wait_for_event","event":"bought","timeout":"P3D","next":"end","on_timeout":"end"},"end":{"type":"exit"}}}`,
	} {
		text := `{"triggers":[{"type":"event","event":"signed_up"}],"recurrence":{"policy":"once"},` + nodes
		for _, first := range []string{"signed_up", "bought"} {
			for _, how := range []string{"event", "direct"} {
				t.Run(name+", first "+first+", "+how, func(t *testing.T) {
					b := setup(t, 1)
					flow := b.live(text)
					enroll := func() error {
						if how == "direct" {
							return second(b.Enroll(bg, b.ws, flow, Enrolling{ProfileKey: "c1", ID: "1"}, false))
						}
						return second(b.Record(bg, b.ws, Event{ProfileKey: "c1", Name: "signed_up"}))
					}
					buy := func() error { return second(b.Record(bg, b.ws, Event{ProfileKey: "c1", Name: "bought"})) }
					var held pgx.Tx
					then := buy
					if first == "signed_up" && how == "direct" {
						held = b.holdDirect(flow, "c1")
					} else {
						held, _ = b.holdTrigger(Event{ProfileKey: "c1", Name: first})
					}
					if first == "bought" {
						then = enroll
					}
					task := start(then)
					b.waitsForLock()
					b.must(held.Commit(bg))
					<-task.done
					b.must(task.err)
					b.settleDown()
					e := b.enrollment(flow, "c1")
					var since bool
					b.must(b.pool.QueryRow(bg, `select received_at > $2 from trigger_events where workspace_id = $1 and name = 'bought'`, b.ws, e.EnrolledAt).Scan(&since))
					if met := e.EndedAt != nil; since != (first == "signed_up") || met != since {
						t.Errorf("since she enrolled: %v, and it met her: %v: %+v", since, met, e)
					}
					if how == "direct" { // told again, it is known by the same time
						if r, err := b.Enroll(bg, b.ws, flow, Enrolling{ProfileKey: "c1", ID: "1"}, false); first == "bought" && (err != nil || r.EnrollmentID == nil || *r.EnrollmentID != e.ID) {
							t.Errorf("%+v, %v", r, err)
						}
					}
				})
			}
		}
	}
}

// Who is enrolled after an event is not on the way since before it, however long
// ago the request began: what an event did not meet does not count as hers.
func TestAnEnrollmentBeginsWhenItHasItsTurn(t *testing.T) {
	b := setup(t, 1)
	flow := b.live(`{"triggers":[{"type":"event","event":"signed_up"}],"recurrence":{"policy":"once"},"exit_on":[{"event":"bought","goal":true}],
		"start":"w","nodes":{"w":{"type":"delay","for":"P3D","next":"end"},"end":{"type":"exit"}}}`)
	slow, err := b.pool.Begin(bg) // its time is that of now
	b.must(err)
	defer func() { _ = slow.Rollback(bg) }()
	b.must(slow.QueryRow(bg, `select 1`).Scan(new(int)))
	bought, _ := b.holdTrigger(Event{ProfileKey: "c1", Name: "bought"})
	o, err := Event{ProfileKey: "c1", Name: "signed_up"}.occurrence()
	b.must(err)
	task := start(func() error {
		return second((&take{Flows: b.Flows, tx: slow, ws: b.ws}).events(bg, []*occurrence{o}))
	})
	b.waitsForLock()
	b.must(bought.Commit(bg))
	<-task.done
	b.must(task.err)
	b.must(slow.Commit(bg))
	e := b.enrollment(flow, "c1")
	if n := b.count(`select count(*) from trigger_events where workspace_id = $1 and name = 'bought' and received_at > $2`, e.EnrolledAt); n != 0 || e.EndedAt != nil {
		t.Errorf("she is on her way since %s, and what she bought later did not end it", e.EnrolledAt)
	}
}

// Flows that listen to nothing but their triggers cost nobody a lock.
func TestProfilesOfFlowsThatDoNotListen(t *testing.T) {
	b := setup(t, 1)
	b.live(hourAfter("go"))
	held, _ := b.holdTrigger(Event{ProfileKey: "c1", Name: "go"})
	if n := b.count(`select count(*) from pg_locks where locktype = 'advisory' and objsubid = 2 and database = (select oid from pg_database where datname = current_database()) and $1::uuid is not null`); n != 0 {
		t.Errorf("%d locks", n)
	}
	b.must(held.Commit(bg))
}

// holdDirect has enrolled directly, in a transaction that is still open.
func (b *bundle) holdDirect(flow [16]byte, profile string) pgx.Tx {
	b.t.Helper()
	tx, err := b.pool.Begin(bg)
	b.must(err)
	b.t.Cleanup(func() { _ = tx.Rollback(bg) })
	take := &take{Flows: b.Flows, tx: tx, ws: b.ws}
	b.must(take.readFlow(bg, flow))
	o, err := Enrolling{ProfileKey: profile}.occurrence(flow)
	b.must(err)
	b.must(take.lockProfiles(bg, []*occurrence{o}))
	b.must(take.enroll(bg, []int{0}, []*occurrence{o}, make([]Recorded, 1)))
	return tx
}

// waitsForLock returns once somebody waits for a lock on a profile.
func (b *bundle) waitsForLock() {
	b.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if b.count(`select count(*) from pg_locks where locktype = 'advisory' and objsubid = 2 and not granted
			and database = (select oid from pg_database where datname = current_database()) and $1::uuid is not null`) > 0 {
			return
		}
		if time.Now().After(deadline) {
			b.t.Fatal("nobody waits")
		}
	}
}

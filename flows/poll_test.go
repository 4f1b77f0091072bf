package flows

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
)

// looked is a flow that looks at its audience each minute; if is the trigger's
// condition.
func looked(policy, condition string) string {
	if condition != "" {
		condition = `,"condition":"` + condition + `"`
	}
	return `{"audience_id":"$audience","triggers":[{"type":"audience","every":"PT1M"` + condition + `}],"recurrence":{"policy":"` + policy + `"},
		"start":"w","nodes":{"w":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`
}

// pollOnce looks at one audience to its end; false when none is due.
func (f *Flows) pollOnce(ctx context.Context) (bool, error) {
	p, err := f.claimPoll(ctx)
	if err != nil || p == nil {
		return false, err
	}
	return true, f.poll(ctx, *p)
}

// look polls once, and asks that one was due.
func (b *bundle) look() {
	b.t.Helper()
	if was, err := b.pollOnce(context.Background()); !was || err != nil {
		b.t.Fatalf("%v %v", was, err)
	}
}

func (b *bundle) nothingDue() {
	b.t.Helper()
	if was, err := b.pollOnce(context.Background()); was || err != nil {
		b.t.Fatalf("%v %v", was, err)
	}
}

func (b *bundle) dueAgain() {
	b.run(b.pool, `update flow_polls set next_at = now()`)
}

// polledRow is what a poll has left behind.
type polledRow struct {
	Rows, Enrolled *int64
	Refused        map[string]int64
	Failures       int
	LastError      *string
	Free           bool
	In             time.Duration // until the next
}

func (b *bundle) polledRow(flow uuid.UUID) (r polledRow) {
	b.t.Helper()
	var in float64
	b.must(b.pool.QueryRow(context.Background(), `
		select rows_read, enrolled, refused, failures, last_error, leased_by is null and lease_until is null, extract(epoch from next_at - now())::float8
		from flow_polls where workspace_id = $1 and flow_id = $2`, b.ws, flow).Scan(&r.Rows, &r.Enrolled, &r.Refused, &r.Failures, &r.LastError, &r.Free, &in))
	r.In = time.Duration(in * float64(time.Second)).Round(time.Minute)
	return r
}

// Everybody in the audience enrolls, once; looked at again, they are refused,
// and that is written down once however often it happens.
func TestAnAudienceEnrolls(t *testing.T) {
	b := setup(t, 2503)
	b.run(b.shop, `insert into customers values ('', 'empty@shop.example'), (repeat('k', 256), 'long@shop.example')`)
	flow := b.live(looked("once", ""))
	b.look()
	b.nothingDue()
	want := polledRow{Rows: ptr(int64(2505)), Enrolled: ptr(int64(2503)), Refused: map[string]int64{InvalidKey: 2}, Free: true, In: time.Minute}
	if d := cmp.Diff(want, b.polledRow(flow)); d != "" {
		t.Fatal(d)
	}
	b.settleDown()
	if n := b.count(`select count(*) from enrollments where workspace_id = $1 and flow_id = $2 and node = 'w' and source = 'audience'`, flow); n != 2503 {
		t.Fatalf("%d are on the way", n)
	}
	for range 3 {
		b.run(b.shop, `insert into customers select 'new' || gen_random_uuid(), 'new@shop.example'`)
		b.dueAgain()
		b.look()
	}
	r := b.polledRow(flow)
	if *r.Enrolled != 1 || r.Refused[AlreadyEnrolled] != 2505 {
		t.Fatalf("%+v", r)
	}
	if n := b.count(`select count(*) from refusals where workspace_id = $1 and flow_id = $2`, flow); n != 2505 {
		t.Fatalf("%d refusals", n)
	}
	b.invariants()
}

// On another day of the flow's zone the same people may enroll anew, if they
// have arrived; each day's refusal is its own.
func TestAnAudienceEnrollsDaily(t *testing.T) {
	b := setup(t, 2)
	flow := b.live(looked("daily", ""))
	day := func(start string) {
		t.Helper()
		b.dueAgain()
		p, err := b.claimPoll(context.Background())
		b.must(err)
		p.start, err = time.Parse(time.RFC3339, start)
		b.must(err)
		b.must(b.Flows.poll(context.Background(), *p))
	}
	day("2026-03-01T10:00:00Z")
	day("2026-03-01T20:00:00Z")
	day("2026-03-01T23:00:00Z")
	b.settleDown()
	b.pass(24 * time.Hour)
	b.settleDown()
	day("2026-03-02T01:00:00Z")
	if n := b.count(`select count(*) from enrollments where workspace_id = $1 and flow_id = $2`, flow); n != 4 {
		t.Fatalf("%d enrollments", n)
	}
	day("2026-03-02T02:00:00Z")
	if n := b.count(`select count(*) from refusals where workspace_id = $1 and flow_id = $2`, flow); n != 4 {
		t.Fatalf("%d refusals", n)
	}
}

// Whom the condition does not let in is refused without a journey being written
// for it, at this poll and the next; who changes is let in.
func TestAnAudienceIsFiltered(t *testing.T) {
	b := setup(t, 10)
	flow := b.live(looked("once", "profile.country == 'DE'"))
	for range 2 {
		b.dueAgain()
		b.look()
		b.settleDown()
	}
	r := b.polledRow(flow)
	if *r.Enrolled != 0 || r.Refused[Filtered] != 5 || r.Refused[AlreadyEnrolled] != 5 {
		t.Fatalf("%+v", r)
	}
	if n := b.count(`select count(*) from enrollments where workspace_id = $1 and flow_id = $2`, flow); n != 5 {
		t.Fatalf("%d enrollments", n)
	}
	if n := b.count(`select count(*) from refusals where workspace_id = $1 and flow_id = $2 and reason = 'filtered'`, flow); n != 5 {
		t.Fatalf("%d refusals", n)
	}
	b.run(b.shop, `update customers set country = 'DE' where id = 'c1'`)
	b.dueAgain()
	b.look()
	if n := len(b.enrollments(flow, "c1")); n != 1 {
		t.Fatalf("%d", n)
	}
}

// A source that fails puts off its own flow, for longer each time, says why,
// and keeps nobody else waiting. It comes back by itself.
func TestAnAudienceThatCannotBeRead(t *testing.T) {
	b := setup(t, 3, func(c *Config) { c.BackOff, c.MaxBackOff = time.Hour, 3*time.Hour })
	broken := b.live(looked("once", ""))
	b.run(b.shop, `alter table customers rename to gone`)
	b.look()
	b.nothingDue()
	r := b.polledRow(broken)
	if r.Failures != 1 || r.LastError == nil || !strings.HasPrefix(*r.LastError, "source_changed") || !r.Free || r.In < time.Hour || r.In > 2*time.Hour {
		t.Fatalf("%+v", r)
	}
	b.dueAgain()
	b.look()
	if r = b.polledRow(broken); r.Failures != 2 || r.In < 2*time.Hour {
		t.Fatalf("%+v", r)
	}
	b.run(b.shop, `alter table gone rename to customers`)
	b.dueAgain()
	b.look()
	if r = b.polledRow(broken); r.Failures != 0 || r.LastError != nil || *r.Enrolled != 3 || r.In != time.Minute {
		t.Fatalf("%+v", r)
	}
}

// A pause, an archive and another version stop a poll between two chunks:
// nobody enrolls after they have answered.
func TestAPollStops(t *testing.T) {
	for name, verb := range map[string]func(b *bundle, flow uuid.UUID) error{
		"pause":   func(b *bundle, flow uuid.UUID) error { return second(b.Pause(context.Background(), b.ws, flow, nil)) },
		"archive": func(b *bundle, flow uuid.UUID) error { return second(b.Archive(context.Background(), b.ws, flow, nil)) },
		"publish": func(b *bundle, flow uuid.UUID) error {
			b.publish(flow, strings.Replace(looked("once", ""), "P1D", "P2D", 1), InFlight{})
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 2500)
			flow := b.live(looked("once", ""))
			chunks := 0
			b.hook = func(stage string) {
				if stage == "poll: chunk" {
					if chunks++; chunks == 2 {
						b.must(verb(b, flow))
					}
				}
			}
			b.look()
			b.hook = nil
			if n := b.count(`select count(*) from enrollments where workspace_id = $1 and flow_id = $2`, flow); n != pollChunk {
				t.Fatalf("%d enrolled", n)
			}
			if n := b.count(`select count(*) from refusals where workspace_id = $1`); n != 0 {
				t.Fatalf("%d refusals", n)
			}
			r := b.polledRow(flow)
			if r.Rows != nil || !r.Free || r.Failures != 0 || r.In != 0 {
				t.Fatalf("%+v", r)
			}
			if name == "publish" { // it is looked at again at once, for the new version
				b.look()
				if n := b.count(`select count(*) from enrollments where workspace_id = $1 and version = 2`); n != 1500 {
					t.Fatalf("%d enrolled", n)
				}
				return
			}
			b.nothingDue()
		})
	}
}

// A paused flow's poll, however long it is due, is in nobody's way.
func TestAPausedPollIsInNobodysWay(t *testing.T) {
	b := setup(t, 2)
	paused := b.live(looked("once", ""))
	b.must(second(b.Pause(context.Background(), b.ws, paused, nil)))
	b.run(b.pool, `update flow_polls set next_at = now() - interval '1 day'`)
	live := b.live(looked("once", ""))
	b.look()
	b.nothingDue()
	if r := b.polledRow(live); *r.Enrolled != 2 {
		t.Fatalf("%+v", r)
	}
	b.must(second(b.Resume(context.Background(), b.ws, paused, ptr(time.Duration(0)), nil)))
	b.look() // what was due in the pause is looked at when it ends
	if r := b.polledRow(paused); *r.Enrolled != 2 {
		t.Fatalf("%+v", r)
	}
}

// Publishing while a poll comes to its end has the audience looked at again.
func TestAPollDoesNotForgetAPublish(t *testing.T) {
	b := setup(t, 3)
	flow := b.live(looked("once", ""))
	p, err := b.claimPoll(context.Background())
	b.must(err)
	read, err := b.pollAudience(context.Background(), *p)
	b.must(err)
	b.publish(flow, strings.Replace(looked("once", ""), "P1D", "P2D", 1), InFlight{})
	b.must(b.finishPoll(context.Background(), *p, read))
	b.look()
}

// Two nodes do not read one audience at a time; when the lease is lost, the one
// that lost it stops and writes nothing over the other's.
func TestAPollIsLeased(t *testing.T) {
	b := setup(t, 1500)
	flow := b.live(looked("once", ""))
	stolen := false
	b.hook = func(stage string) {
		if stage != "poll: chunk" || stolen {
			return
		}
		stolen = true
		b.nothingDueFor(b.another())
		b.run(b.pool, `update flow_polls set leased_by = 'another', lease_until = now() + interval '1 hour'`)
	}
	b.look()
	b.hook = nil
	if n := b.count(`select count(*) from flow_polls where workspace_id = $1 and leased_by = 'another' and rows_read is null`); n != 1 {
		t.Fatal("it wrote over another's poll")
	}
	b.nothingDue()
	b.run(b.pool, `update flow_polls set lease_until = now() - interval '1 second'`)
	b.look() // whoever died with a lease is taken over from
	if r := b.polledRow(flow); *r.Rows != 1500 || !r.Free {
		t.Fatalf("%+v", r)
	}
	if n := b.count(`select count(*) from enrollments where workspace_id = $1 and flow_id = $2`, flow); n != 1500 {
		t.Fatalf("%d enrolled", n)
	}
}

// Who keeps a lease stops the reading when the lease is somebody else's.
func TestAPollThatLostItsLeaseStops(t *testing.T) {
	b := setup(t, 1, func(c *Config) { c.Lease = 30 * time.Millisecond })
	b.live(looked("once", ""))
	p, err := b.claimPoll(context.Background())
	b.must(err)
	b.run(b.pool, `update flow_polls set leased_by = 'another', lease_until = now() + interval '1 hour'`)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	b.renewPoll(ctx, stop, *p) // comes back, since it is
	if ctx.Err() == nil {
		t.Fatal("it goes on")
	}
}

func (b *bundle) nothingDueFor(f *Flows) {
	if was, err := f.pollOnce(context.Background()); was || err != nil {
		b.t.Errorf("%v %v", was, err)
	}
}

// A tick begins polls and does not wait for them; more than one at a time of a
// workspace it leaves for later.
func TestATickDoesNotWaitForPolls(t *testing.T) {
	b := setup(t, 3)
	for range 3 {
		b.live(looked("once", ""))
	}
	at, leave := make(chan struct{}, 9), make(chan struct{})
	b.hook = func(stage string) {
		if stage == "poll: chunk" {
			at <- struct{}{}
			<-leave
		}
	}
	b.must(b.pollDue(context.Background()))
	<-at
	b.must(b.pollDue(context.Background()))
	if n := b.count(`select count(*) from flow_polls where workspace_id = $1 and leased_by is not null`); n != 1 {
		t.Fatalf("%d at a time", n)
	}
	close(leave)
	b.polls.running.Wait()
	for range 2 {
		b.must(b.pollDue(context.Background()))
		b.polls.running.Wait()
	}
	if n := b.count(`select count(*) from enrollments where workspace_id = $1`); n != 9 {
		t.Fatalf("%d enrolled", n)
	}
}

package flows_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/flows"
	"lemma/flows/enrollment"
	"lemma/flows/flowstest"
	"lemma/flows/intake"
)

// A shard that is not read has no enrollment that is due, whatever commits when.

// idle raises the bounds of all shards, and checks that it did.
func (b *bundle) idle() {
	b.T.Helper()
	b.Exec(`update flow_shards set worked_at = now() - interval '1 minute'`)
	b.Must(b.RaiseBounds(bg))
	b.WantCount(0, `select count(*) from flow_shards where next_due_at <= now()`)
}

// makeDue makes an enrollment due in a transaction, up to its commit.
func (b *bundle) makeDue(tx pgx.Tx, flow, id uuid.UUID) {
	b.T.Helper()
	_, err := tx.Exec(bg, `update enrollments set resume_at = now() where workspace_id = $1 and id = $2`, b.Workspace, id)
	b.Must(err)
	shard := enrollment.Shard{Workspace: b.Workspace, Flow: flow, Number: enrollment.ShardOf(id)}
	b.Must(enrollment.LowerBounds(bg, tx, map[enrollment.Shard]bool{shard: true}))
}

func (b *bundle) begin() pgx.Tx {
	b.T.Helper()
	tx, err := b.Pool.Begin(bg)
	b.Must(err)
	b.T.Cleanup(func() { _ = tx.Rollback(bg) })
	return tx
}

func (b *bundle) wantOneDue() {
	b.T.Helper()
	if n, err := b.RunOnce(bg); n != 1 || err != nil {
		b.T.Errorf("%d enrollments are found, %v", n, err)
	}
}

// The writer sees a bound that has passed and lowers nothing. The bound must stay until the
// writer has committed.
func TestABoundIsNotRaisedBesideAWriter(t *testing.T) {
	b := setup(t, 2)
	s := b.NewPair(false)
	b.Settle()
	b.Exec(`update flow_shards set worked_at = now() - interval '1 minute'`)
	tx := b.begin()
	b.makeDue(tx, s.FlowID, s.C1)
	b.Must(b.RaiseBounds(bg))
	b.Must(tx.Commit(bg))
	b.wantOneDue()
	b.idle()
}

// The writer waits for a transaction that raises the bound, and finds it raised.
func TestAWriterLowersTheBoundThatWasRaised(t *testing.T) {
	b := setup(t, 2)
	s := b.NewPair(false)
	b.Settle()
	var all []enrollment.Shard
	for shard := range enrollment.ShardsOf(b.Workspace, s.FlowID) {
		all = append(all, shard)
	}
	raise := b.begin()
	if n, err := enrollment.RaiseBounds(bg, raise, all); n != enrollment.Shards || err != nil {
		t.Fatalf("%d are raised, %v", n, err)
	}
	write := b.begin()
	before := b.Waits()
	writer := flowstest.Start(func() error { b.makeDue(write, s.FlowID, s.C1); return write.Commit(bg) })
	b.Until(before, writer.Done)
	b.Must(raise.Commit(bg))
	<-writer.Done
	b.Must(writer.Err)
	b.wantOneDue()
}

// Enrollments that are seeded for a benchmark are found, also if no worker reads their shards.
func TestSeededEnrollmentsLowerTheBounds(t *testing.T) {
	b := setup(t, 0)
	flow := b.Live(`{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"wait","nodes":{
		"wait":{"type":"delay","for":"P60D","next":"end"},"end":{"type":"exit"}}}`)
	b.idle()
	b.Must(b.SeedWaiting(bg, b.Workspace, flow, "wait", "seeded", 20, 0))
	found := 0
	for n := 1; n > 0; found += n { // shard by shard
		var err error
		n, err = b.RunOnce(bg)
		b.Must(err)
	}
	if found != 20 {
		t.Errorf("%d enrollments are found", found)
	}
}

// An enrollment becomes due between the search for idle shards and the raise.
func TestARaiseReadsWhatWasCommittedSince(t *testing.T) {
	b := setup(t, 2)
	s := b.NewPair(false)
	b.Settle()
	b.Exec(`update flow_shards set worked_at = now() - interval '1 minute'`)
	p := b.Another()
	p.Hook.Do = func(at string) {
		if at == "raise: found" {
			b.Must(pgx.BeginFunc(bg, b.Pool, func(tx pgx.Tx) error { b.makeDue(tx, s.FlowID, s.C1); return nil }))
		}
	}
	b.Must(p.RaiseBounds(bg))
	b.wantOneDue()
	b.WantCount(3, `select count(*) from flow_shards where next_due_at > now()`)
}

// Everything that makes an enrollment due lowers the bound of its shard, which no worker
// reads otherwise.
func TestWhatMakesAnEnrollmentDueLowersItsBound(t *testing.T) {
	const asks = `{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"ask","nodes":{
		"ask":{"type":"wait_for_event","event":"bought","timeout":"P1D","next":"end","on_timeout":"end"},"end":{"type":"exit"}}}`
	const sleeps = `{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"ask","nodes":{
		"ask":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`
	for name, c := range map[string]struct {
		text  string
		write func(b *bundle, flow uuid.UUID)
	}{
		"an event enrolls":            {asks, func(b *bundle, _ uuid.UUID) { b.RecordEvent("c2", "go") }},
		"an event ends a wait":        {asks, func(b *bundle, _ uuid.UUID) { b.RecordEvent("c1", "bought") }},
		"a manual move":               {sleeps, func(b *bundle, flow uuid.UUID) { b.moves(flow) }},
		"a publish moves enrollments": {sleeps, func(b *bundle, flow uuid.UUID) { b.publishes(flow, sleeps) }},
		"a webhook is answered":       {flowstest.CallsWebhook, func(b *bundle, _ uuid.UUID) { b.CallWebhooks() }},
		"a direct request enrolls": {asks, func(b *bundle, flow uuid.UUID) {
			_, err := b.Enroll(bg, b.Workspace, flow, intake.Enrolling{ProfileKey: "c2"}, false)
			b.Must(err)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 2)
			var status atomic.Int32
			status.Store(200)
			flow := b.Live(strings.ReplaceAll(c.text, "$endpoint", b.AnsweringEndpoint(&status)))
			b.RecordEvent("c1", "go")
			b.Settle()
			b.idle()
			c.write(b, flow)
			b.wantOneDue()
			b.Invariants()
		})
	}
}

func (b *bundle) moves(flow uuid.UUID) {
	b.T.Helper()
	_, err := b.Move(bg, b.Workspace, b.Enrollment(flow, "c1").ID, nil, "end")
	b.Must(err)
}

func (b *bundle) publishes(flow uuid.UUID, text string) {
	b.T.Helper()
	text = strings.Replace(text, `"type":"delay","for":"P1D"`, `"type":"wait_until","time":"09:00","zone":"UTC"`, 1)
	b.PublishNext(flow, text, flows.InFlight{Mode: "move"})
	b.FinishMoves()
}

// A retry of enrollments that wait for a data source.
func TestARetryLowersTheBound(t *testing.T) {
	b := setup(t, 10, func(c *flows.Config) { c.BackOff, c.MaxBackOff = time.Hour, time.Hour })
	b.Live(asksProfiles)
	unlock := b.hangs()
	b.RecordEvent("c1", "go")
	b.Settle()
	unlock()
	b.idle()
	for range 3 {
		b.opens()
		b.Must(b.Tick(bg))
	}
	b.wantOneDue()
}

func TestAPollLowersTheBounds(t *testing.T) {
	b := setup(t, 3)
	flow := b.Live(`{"audience_id":"$audience","triggers":[{"type":"audience","every":"PT1M"}],"recurrence":{"policy":"once"},"start":"e",
		"nodes":{"e":{"type":"exit"}}}`)
	b.idle()
	if n := b.PollFlow(flow); n != 3 {
		t.Fatalf("%d enroll", n)
	}
	b.wantAllRead(3)
}

// A worker that refuses enrollments enrolls the triggers behind them, also in other shards.
func TestATriggerThatIsOfferedAgainLowersTheBound(t *testing.T) {
	const n = 8
	b := setup(t, n)
	b.Live(strings.NewReplacer("$recurrence", `{"policy":"per_event"}`, "$overlap", "", "US", "DE").Replace(largeOrders))
	b.ExecDB(`alter table customers rename to gone`)
	for i := range 2 * n {
		b.RecordEvent(fmt.Sprint("c", i%n+1), "ordered", flowstest.Properties(fmt.Sprintf(`{"amount":%d}`, 5+300*(i/n))))
	}
	b.Settle()
	b.ExecDB(`alter table gone rename to customers`)
	b.ExecDB(`update customers set country = 'DE'`)
	b.opens()
	b.Exec(`update enrollments set shard = 0, resume_at = now() + interval '1 hour'`)
	b.idle()
	b.Exec(`update enrollments set resume_at = now()`)
	b.Exec(`update flow_shards set next_due_at = now() where shard = 0`)
	if read, err := b.RunOnce(bg); read != n || err != nil {
		t.Fatalf("%d are read, %v", read, err)
	}
	b.wantAllRead(n)
}

// wantAllRead checks that n enrollments are due, and that workers read their shards.
func (b *bundle) wantAllRead(n int) {
	b.T.Helper()
	b.WantCount(n, `select count(*) from enrollments e join flow_shards t on t.flow_id = e.flow_id and t.shard = e.shard
		where e.status = 'active' and e.resume_at <= now() and t.next_due_at <= now()`)
	b.WantCount(n, `select count(*) from enrollments e where e.status = 'active' and e.resume_at <= now()`)
}

// Workers read the shards of flows that advance, in each status and after each verb.
func TestTheBoundsFollowTheStatus(t *testing.T) {
	b := setup(t, 2)
	flow := b.NewDraft(flowstest.Welcome).ID
	want := func(verb string, err error, read int) {
		t.Helper()
		b.Must(err)
		if n := b.Count(`select count(*) from flow_shards where workspace_id = $1 and next_due_at <= now()`, b.Workspace); n != read {
			t.Errorf("%s: workers read %d shards", verb, n)
		}
		if read > 0 {
			b.idle()
		}
		if n := b.Count(`select count(*) from flow_shards where workspace_id = $1 and next_due_at is null`, b.Workspace); n != 4 && read == 0 {
			t.Errorf("%s: %d shards are not read", verb, n)
		}
	}
	verb := func(name string, do func(context.Context, uuid.UUID, uuid.UUID, *flows.Actor) (flows.Flow, error), read int) {
		t.Helper()
		_, err := do(bg, b.Workspace, flow, nil)
		want(name, err, read)
	}
	resume := func(ctx context.Context, ws, flow uuid.UUID, by *flows.Actor) (flows.Flow, error) {
		return b.Resume(ctx, ws, flow, new(time.Duration(0)), by)
	}
	want("created", nil, 0)
	_, err := b.Publish(bg, b.Workspace, flow, 1, nil, flows.InFlight{Mode: "stay"}, nil)
	want("published", err, 4)
	verb("paused", b.Pause, 0)
	verb("resumed", resume, 4)
	verb("paused again", b.Pause, 0)
	verb("drained out of a pause", b.Drain, 4)
	verb("paused while it drains", b.Pause, 0)
	verb("resumed as draining", resume, 4)
	b.Must(b.ArchiveDrained(bg))
	want("archived", nil, 0)
}

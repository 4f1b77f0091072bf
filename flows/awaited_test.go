package flows_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma/flows"
	"lemma/flows/enrollment"
	"lemma/flows/flowstest"
	"lemma/flows/intake"
	"lemma/pgtest"
)

// twoWaits waits for an event and then for another one, or for another event of the same
// name.
func twoWaits(first, second string) string {
	return strings.NewReplacer("FIRST", first, "SECOND", second).Replace(`{"triggers":[{"type":"event","event":"go"}],
		"recurrence":{"policy":"per_event"},"start":"w1","nodes":{
	"w1":{"type":"wait_for_event","event":"FIRST","timeout":"P1D","next":"w2","on_timeout":"late1"},
	"w2":{"type":"wait_for_event","event":"SECOND","timeout":"P1D","next":"done","on_timeout":"late2"},
	"late1":{"type":"exit"},"late2":{"type":"exit"},"done":{"type":"exit"}}}`)
}

const bothMatched = "enrolled@ checked@ resumed@w1 resumed@w2 completed@done"

// An event that ended one wait does not match the next.
func TestAnEventEndsOneWaitAndNotTheNext(t *testing.T) {
	b := setup(t, 2)
	flow := b.Live(twoWaits("a", "b"))
	for _, profile := range []string{"c1", "c2"} {
		b.RecordEvent(profile, "go")
		b.Settle()
		b.RecordEvent(profile, "a")
		b.Settle()
	}
	if r := b.RecordEvent("c1", "b"); r.Woken != 1 {
		t.Errorf("%d woken", r.Woken)
	}
	b.Settle()
	b.WantTrace(b.Enrollment(flow, "c1").ID, bothMatched)
	b.Pass(25 * time.Hour)
	b.Settle()
	b.WantTrace(b.Enrollment(flow, "c2").ID, "enrolled@ checked@ resumed@w1 timed_out@w2 completed@late2")
	b.Invariants()
}

// A delay after a wait that ended with an event is shifted like any other.
func TestADelayAfterAnAwaitedEventIsShifted(t *testing.T) {
	b := setup(t, 1)
	text := `{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"w1","nodes":{
		"w1":{"type":"wait_for_event","event":"a","timeout":"P1D","next":"pause","on_timeout":"end"},
			"pause":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`
	flow := b.Live(text)
	b.RecordEvent("c1", "go")
	b.Settle()
	b.RecordEvent("c1", "a")
	b.Settle()
	was := b.Enrollment(flow, "c1")
	b.PublishNext(flow, strings.Replace(text, `"for":"P1D"`, `"for":"P3D"`, 1), flows.InFlight{Mode: "move"})
	b.FinishMoves()
	if is := b.Enrollment(flow, "c1"); !is.ResumeAt.Equal(was.ResumeAt.Add(48 * time.Hour)) {
		t.Errorf("from %s to %s", was.ResumeAt, is.ResumeAt)
	}
}

// Each event ends one wait: one that arrived while a worker was about to enter the first,
// and each of several that came before a late worker.
func TestEachEventEndsOneWait(t *testing.T) {
	b := setup(t, 3)
	flow := b.Live(twoWaits("a", "a"))
	b.RecordEvent("c1", "go")
	w := b.StopAt("evaluated")
	b.Reached(w)
	b.RecordEvent("c1", "a")
	b.Must(w.End())
	b.Settle()
	if got := b.Trace(b.Enrollment(flow, "c1").ID); got != "enrolled@ checked@ resumed@w1" {
		t.Errorf("one event: %s", got)
	}
	for profile, chunks := range map[string][][]string{"c2": {{"go"}, {"a"}, {"a"}}, "c3": {{"go", "a", "a"}}} {
		for _, chunk := range chunks {
			b.RecordEvents(profile, chunk...)
		}
		b.Settle() // the worker comes late
		if got := b.Trace(b.Enrollment(flow, profile).ID); got != bothMatched {
			t.Errorf("%s: %s", profile, got)
		}
	}
	b.Invariants()
}

// An enrollment whose awaited event matched has left the wait at the time of the event,
// even if a move has made that wait longer since.
func TestAnEndedWaitIsNotShifted(t *testing.T) {
	b := setup(t, 1)
	text := twoWaits("a", "a")
	flow := b.Live(text)
	b.RecordEvents("c1", "go", "a")
	if n, err := b.RunOnce(bg); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	b.RecordEvent("c1", "a")
	b.PublishNext(flow, strings.Replace(text, "P1D", "P3D", 1), flows.InFlight{Mode: "move"})
	b.FinishMoves()
	b.Settle()
	b.WantTrace(b.Enrollment(flow, "c1").ID, "enrolled@ checked@ moved@w1 resumed@w1 resumed@w2 completed@done")
}

// A wait may be found to have ended with an event only after its time. The next event then
// matches the next wait.
func TestTheLastPollFindsOneEventForEachWait(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(twoWaits("a", "a"))
	b.RecordEvent("c1", "go")
	b.Settle()
	b.RecordEvents("c1", "a", "a")
	id := b.Enrollment(flow, "c1").ID
	// As if the event had searched before the enrollment was visible.
	b.Exec(`update enrollments set matched_event = null, resume_at = now() where workspace_id = $1`, b.Workspace)
	b.Settle()
	b.WantTrace(id, bothMatched)
	b.Invariants()
}

// An enrollment whose awaited event matched before it entered the wait does not count
// twice in a release, and is not shown as blocked.
func TestAMissedEventMakesDueNow(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(twoWaits("a", "b"))
	b.RecordEvent("c1", "go")
	b.Must(flowstest.Second(b.Pause(bg, b.Workspace, flow, nil)))
	b.RecordEvent("c1", "a")
	b.Must(flowstest.Second(b.Resume(bg, b.Workspace, flow, new(time.Hour), nil)))
	b.Exec(`update flows set catch_up_until = resumed_at + interval '1 microsecond' where workspace_id = $1`, b.Workspace)
	if n, err := b.RunOnce(bg); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	e := b.Enrollment(flow, "c1")
	if held := *b.Flow(flow).ResumedAt; e.Node != "w1" || !e.ResumeAt.After(held) || e.BlockedSince != nil {
		t.Errorf("%+v, released until %s", e, held)
	}
}

// An enrollment that is moved during a release keeps its order in it, and earlier events
// do not match on its new node.
func TestAMoveInAReleaseReceivesLaterEvents(t *testing.T) {
	b := setup(t, 1)
	text := twoWaits("a", "b")
	flow := b.Live(text)
	b.RecordEvent("c1", "go")
	b.Settle()
	b.Must(flowstest.Second(b.Pause(bg, b.Workspace, flow, nil)))
	b.TimeOut()
	b.Must(flowstest.Second(b.Resume(bg, b.Workspace, flow, new(time.Hour), nil)))
	b.RecordEvent("c1", "b")
	b.PublishNext(flow, text, flows.InFlight{Mode: "move", Map: map[string]*string{"w1": new("w2")}})
	b.FinishMoves()
	b.Exec(`update flows set catch_up_until = resumed_at + interval '1 microsecond' where workspace_id = $1`, b.Workspace)
	b.Settle()
	e := b.Enrollment(flow, "c1")
	if got := b.Trace(e.ID); got != "enrolled@ checked@ moved@w2" || e.Status != enrollment.Waiting {
		t.Errorf("%s: %s", e.Status, got)
	}
	if r := b.RecordEvent("c1", "b"); r.Woken != 1 {
		t.Errorf("%d woken", r.Woken)
	}
}

// lockRow locks an enrollment, so that other transactions wait for it.
func (b *bundle) lockRow(id uuid.UUID) (unlock func()) {
	b.T.Helper()
	tx, err := b.Pool.Begin(bg)
	b.Must(err)
	b.T.Cleanup(func() { _ = tx.Rollback(bg) })
	_, err = tx.Exec(bg, `select from enrollments where id = $1 for update`, id)
	b.Must(err)
	return func() { b.Must(tx.Rollback(bg)) }
}

// stuckChunk is c1, which waits, and a chunk with an event for it that waits for the lock
// on c2.
type stuckChunk struct {
	*bundle
	flow  uuid.UUID
	c1    uuid.UUID
	chunk *flowstest.Task
	done  []intake.Recorded
	free  func()
}

func (b *bundle) stuckChunk(text string, more ...string) *stuckChunk {
	b.T.Helper()
	h := &stuckChunk{bundle: b, flow: b.Live(text)}
	b.RecordEvent("c2", "go")
	b.RecordEvent("c1", "go")
	b.Settle()
	h.c1 = b.Enrollment(h.flow, "c1").ID
	h.free = b.lockRow(b.Enrollment(h.flow, "c2").ID)
	chunk := []intake.Event{{ProfileKey: "c2", Name: "a"}, {ProfileKey: "c1", Name: "a"}}
	for _, name := range more {
		chunk = append(chunk, intake.Event{ProfileKey: "c1", Name: name})
	}
	h.chunk = flowstest.Start(func() (err error) { h.done, err = b.RecordAll(bg, b.Workspace, chunk); return err })
	b.Until(0, h.chunk.Done)
	return h
}

// ends unlocks c2 and advances all enrollments.
func (h *stuckChunk) ends() {
	h.T.Helper()
	h.free()
	<-h.chunk.Done
	h.Must(h.chunk.Err)
	h.Settle()
	h.Invariants()
}

// The wait times out while the event's transaction waits for a lock. Whether a worker has
// read the enrollment or not, the event is too late, and its time shows it.
func TestAnEventAppliedAfterTheTimeout(t *testing.T) {
	for name, worker := range map[string]bool{"a worker was there": true, "none was": false} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 2)
			h := b.stuckChunk(twoWaits("a", "b"))
			over := pgtest.One[time.Time](b.T, b.Pool, `update enrollments set resume_at = now() where workspace_id = $1 and id = $2 returning
				resume_at`,
				b.Workspace, h.c1)
			if worker {
				b.Settle()
			}
			h.ends()
			if got := b.Trace(h.c1); got != "enrolled@ checked@ timed_out@w1 completed@late1" || h.done[1].Woken != 0 {
				t.Errorf("%d woken, %s", h.done[1].Woken, got)
			}
			b.WantCount(0, `select count(*) from trigger_events where workspace_id = $1 and profile_key = 'c1' and name = 'a'
				and received_at < $2`, b.Workspace, over)
		})
	}
}

// Of two concurrent chunks the first to begin is the second to commit: each event ends a
// wait, whether a worker ran between them or not.
func TestTwoChunksBesideEachOther(t *testing.T) {
	for name, worker := range map[string]bool{"a worker was between them": true, "none was": false} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 2)
			h := b.stuckChunk(twoWaits("a", "a"))
			if r := b.RecordEvent("c1", "a"); r.Woken != 1 {
				t.Errorf("%d woken", r.Woken)
			}
			if worker {
				b.Settle()
			}
			h.ends()
			b.WantTrace(h.c1, bothMatched)
		})
	}
}

// The events after a delayed event in a chunk are delayed too: the time of an enrollment
// separates earlier events from later ones.
func TestAnEventRecordedLaterIsLater(t *testing.T) {
	b := setup(t, 2)
	second := b.Live(strings.Replace(twoWaits("a", "b"), `"go"`, `"again"`, 1))
	h := b.stuckChunk(twoWaits("a", "c"), "again", "viewed", "a", "b")
	h.ends()
	order := pgtest.One[string](b.T, b.Pool, `select string_agg(name, ' ' order by received_at) from trigger_events where workspace_id = $1
		and profile_key = 'c1'`, b.Workspace)
	if order != "go a again viewed a b" {
		t.Error(order)
	}
	e := b.Enrollment(second, "c1")
	b.WantTrace(e.ID, bothMatched)
	_, results, err := b.GetEvent(bg, b.Workspace, h.done[2].Key)
	if err != nil || len(results) != 1 || results[0].EnrollmentID == nil || *results[0].EnrollmentID != e.ID {
		t.Errorf("%+v, %v", results, err)
	}
	b.WantCount(0, `select count(*) from trigger_events where workspace_id = $1 and name = 'viewed' and received_at <= $2`, b.Workspace,
		e.EnrolledAt)
}

// A wait finds its event among more than a page of events that were received at one time.
func TestAnAwaitedEventAmongManyOfOneTime(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(`{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"w","nodes":{
		"w":{"type":"wait_for_event","event":"bought","condition":"event.properties.n == 250","timeout":"PT1H","next":"done",
			"on_timeout":"late"},"done":{"type":"exit"},"late":{"type":"exit"}}}`)
	b.RecordEvent("c1", "go")
	b.Settle()
	b.Pass(2 * time.Hour)
	b.Exec(`insert into trigger_events (workspace_id, key, profile_key, name, properties, occurred_at, received_at)
		select $1, lpad(n::text, 32, '0')::uuid, 'c1', 'bought', '{"n":' || n || '}', now(), now() - interval '90 min'
		from generate_series(1, 250) n`, b.Workspace)
	b.Settle()
	b.WantTrace(b.Enrollment(flow, "c1").ID, "enrolled@ checked@ resumed@w completed@done")
}

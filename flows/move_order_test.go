package flows_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/flows"
	"lemma/flows/enrollment"
	"lemma/flows/flowstest"
	"lemma/pgtest"
	"lemma/processors"
)

// An enrollment advances to a node that is gone between the publish and the chunk.
func TestAMoveMapsEnrollmentsThatAdvancedBeforeTheChunk(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(`{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"a","nodes":{
		"a":{"type":"delay","for":"P1D","next":"b"},"b":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`)
	b.RecordEvent("c1", "go")
	b.Settle()
	b.PublishNext(flow, `{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"a",
		"nodes":{"a":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`,
		flows.InFlight{Mode: "move", Map: map[string]*string{"b": nil}})
	worker := b.Another()
	b.Hook.Do = func(stage string) {
		if stage == "move: found" && b.Enrollment(flow, "c1").Node == "a" {
			b.Hook.Do = nil
			b.Pass(25 * time.Hour)
			_, err := worker.RunOnce(context.Background())
			b.Must(err)
		}
	}
	b.FinishMoves()
	if e := b.Enrollment(flow, "c1"); e.Status != enrollment.Exited || e.ExitReason != enrollment.ExitReplaced || e.Node != "b" {
		t.Errorf("%+v", e)
	}
}

// A worker that has read enrollments before they were moved finds them moved, and changes
// nothing.
func TestMovedUnderAWorker(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(`{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"a",
		"nodes":{"a":{$send,"next":"end"},"end":{"type":"exit"}}}`)
	b.RecordEvent("c1", "go")
	worker := b.Another()
	worker.Hook.Do = func(stage string) {
		if stage == "evaluated" {
			worker.Hook.Do = nil
			b.PublishNext(flow, `{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"z",
				"nodes":{"z":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`,
				flows.InFlight{Mode: "move", Map: map[string]*string{"a": new("z")}})
			b.FinishMoves()
		}
	}
	_, err := worker.RunOnce(context.Background())
	b.Must(err)
	e := b.Enrollment(flow, "c1")
	if n := b.Notifications(); n != 0 || e.Version != 2 || e.Node != "" {
		t.Errorf("%d notifications, %+v", n, e)
	}
	b.Settle()
	if got := b.Trace(e.ID); got != "enrolled@ moved@ checked@ waiting@z" && got != "enrolled@ moved@ checked@" {
		t.Error(got)
	}
}

// The last publish decides, even while a worker carries out the move of the one before.
func TestALaterPublishEndsAnOpenMove(t *testing.T) {
	b := setup(t, 4, func(c *flows.Config) { c.Chunk = 1 })
	flow := b.Live(flowstest.Welcome)
	for _, c := range []string{"c1", "c2", "c3", "c4"} {
		b.RecordEvent(c, "signed_up")
	}
	b.Settle()
	b.PublishNext(flow, flowstest.Welcome, flows.InFlight{Mode: "move"})
	chunks := 0
	b.Hook.Do = func(stage string) {
		if stage != "move: found" {
			return
		}
		if chunks++; chunks == 3 {
			b.PublishNext(flow, flowstest.Welcome, flows.InFlight{})
		}
	}
	n, err := b.MoveOnce(context.Background())
	b.Must(err)
	b.Hook.Do = nil
	if left := b.Count(`select count(*) from enrollments where workspace_id = $1 and version = 1`, b.Workspace); n != 2 || left != 2 {
		t.Errorf("%d were moved, %d stay", n, left)
	}
	b.FinishMoves()
	b.WantCount(2, `select count(*) from enrollments where workspace_id = $1 and version = 1`, b.Workspace)
	// Another move takes enrollments over from all versions.
	b.PublishNext(flow, flowstest.Welcome, flows.InFlight{Mode: "move"})
	b.FinishMoves()
	b.WantCount(4, `select count(*) from enrollments where workspace_id = $1 and version = 4`, b.Workspace)
	b.WantCount(6, `select count(*) from enrollment_steps where workspace_id = $1 and event = 'moved'`, b.Workspace)
}

// An enrollment that joins the version between the query and the chunk is not moved again.
func TestAnOrderMovesAnEnrollmentOnce(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(flowstest.Welcome)
	b.RecordEvent("c1", "signed_up")
	b.Settle()
	b.PublishNext(flow, flowstest.Welcome, flows.InFlight{Mode: "move"})
	b.Hook.Do = func(stage string) {
		if stage == "move: found" {
			b.Hook.Do = nil
			_, err := b.Move(context.Background(), b.Workspace, b.Enrollment(flow, "c1").ID, new(2), "nudge")
			b.Must(err)
		}
	}
	b.FinishMoves()
	if e := b.Enrollment(flow,
		"c1"); e.Node != "nudge" || b.Count(`select count(*) from enrollment_steps where workspace_id = $1 and event = 'moved'`,
		b.Workspace) != 1 {
		t.Errorf("%+v: %s", e, b.Trace(e.ID))
	}
}

// An expired lease lets another process continue, and the first one does no harm.
func TestAMoveWithAnExpiredLeaseIsResumed(t *testing.T) {
	b := setup(t, 2, func(c *flows.Config) { c.Chunk = 1 })
	ctx := context.Background()
	flow := b.Live(flowstest.Welcome)
	b.RecordEvent("c1", "signed_up")
	b.RecordEvent("c2", "signed_up")
	b.Settle()
	b.PublishNext(flow, flowstest.Welcome, flows.InFlight{Mode: "move"})
	other := b.Another()
	once := false
	b.Hook.Do = func(stage string) {
		if stage != "move: found" || once {
			return
		}
		once = true
		if n, err := other.MoveOnce(ctx); n != 0 || err != nil {
			t.Errorf("two work at a move: %d, %v", n, err)
		}
		b.Exec(`update flow_moves set lease_until = now() - interval '1 second' where workspace_id = $1`, b.Workspace)
		if n, err := other.MoveOnce(ctx); n != 2 || err != nil {
			t.Errorf("%d taken over: %v", n, err)
		}
	}
	if n, err := b.MoveOnce(ctx); n != 0 || err != nil {
		t.Errorf("%d moved with a lost lease: %v", n, err)
	}
	b.FinishMoves()
	b.WantCount(2, `select moved from flow_moves where workspace_id = $1`, b.Workspace)
}

// The move of a flow with many enrollments does not hold up that of another workspace.
func TestMovesOfWorkspacesAlternate(t *testing.T) {
	const waits = `{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"$start","nodes":{
		"$start":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`
	b := setup(t, 0, func(c *flows.Config) { c.Chunk = 2 })
	b.SetMoveTime(0)
	moving := func(profiles int) {
		event := lemma.NewID().String()
		waits := strings.Replace(waits, `"go"`, `"`+event+`"`, 1)
		flow := b.Live(strings.ReplaceAll(waits, "$start", "a"))
		for i := range profiles {
			b.RecordEvent(fmt.Sprint("c", i), event)
		}
		b.Settle()
		b.PublishNext(flow, strings.ReplaceAll(waits, "$start", "b"), flows.InFlight{Mode: "move", Map: map[string]*string{"a": new("b")}})
	}
	for range 25 {
		moving(3)
	}
	large := b.Workspace
	b.Workspace = pgtest.Workspace(t, b.Pool)
	moving(1)
	open := func() int {
		return b.Count(`select count(*) from flow_moves where workspace_id = $1 and finished_at is null`, b.Workspace)
	}
	for rounds := 0; open() > 0; rounds++ {
		n, err := b.MoveOnce(bg)
		b.Must(err)
		if n > 2 {
			t.Fatalf("%d enrollments were moved while another workspace waited", n)
		}
		if rounds == 19 {
			t.Fatal("the other workspace waits until the large move has ended")
		}
	}
	b.Workspace = large
	b.FinishMoves()
	b.WantCount(75, `select count(*) from enrollments where workspace_id = $1 and node = 'b'`, large)
}

// inVersions makes a flow with twelve enrollments, four in each of three versions in no order of their
// ids, that a move takes to a fifth version.
func (b *bundle) inVersions() (flow uuid.UUID) {
	text := func(d int) string {
		return fmt.Sprintf(`{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"d",
			"nodes":{"d":{"type":"delay","for":"P%dD","next":"e"},"e":{"type":"exit"}}}`, d)
	}
	flow = b.Live(text(10))
	b.RecordOfAll(12, "go")
	b.Settle()
	for i := range 3 {
		b.PublishNext(flow, text(11+i), flows.InFlight{Mode: "stay"})
	}
	b.Exec(`update enrollments set version = 1 + substr(profile_key, 2)::int % 3 where flow_id = $1`, flow)
	b.PublishNext(flow, text(30), flows.InFlight{Mode: "move"})
	return flow
}

// A move of enrollments of several versions reads the definition of each once in a chunk, and keeps
// one of them: versions may be large, and there may be a thousand.
func TestAMoveReadsVersionsOnce(t *testing.T) {
	b := setup(t, 12, func(c *flows.Config) { c.Chunk = 6 })
	flow := b.inVersions()
	n, seen := b.Traced()
	read := 0
	seen.Stop = func(sql string) {
		if strings.HasPrefix(sql, "select definition from flow_versions") {
			read++
		}
	}
	for {
		if moved, err := n.MoveOnce(bg); moved == 0 {
			b.Must(err)
			break
		}
	}
	b.WantCount(12, `select count(*) from enrollments where workspace_id = $1 and flow_id = $2 and version = 5`, b.Workspace, flow)
	if read != 4 { // of three versions, and the new one
		t.Errorf("%d definitions were read", read)
	}
}

// A chunk of a move leaves the enrollments of further versions when its time has passed.
func TestAChunkOfAMoveReadsFewVersions(t *testing.T) {
	b := setup(t, 12)
	flow := b.inVersions()
	b.SetRouteTime(-1)
	for i := range 3 {
		n, err := b.MoveOnce(bg)
		b.Must(err)
		if n != 4 {
			t.Errorf("%d were moved", n)
		}
		b.WantCount(4*(i+1), `select count(*) from enrollments where workspace_id = $1 and flow_id = $2 and version = 5`, b.Workspace, flow)
	}
}

// The workspace has no processor left: its move, and those of others behind it, do not wait for one.
func TestAMoveWaitsForNoProcessor(t *testing.T) {
	b := setup(t, 1)
	text := `{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"d",
		"nodes":{"d":{"type":"delay","for":"P1D","next":"e"},"e":{"type":"exit"}}}`
	flow := b.Live(text)
	b.RecordEvent("c1", "go")
	b.Settle()
	b.PublishNext(flow, text, flows.InFlight{Mode: "move"})
	n := runtime.GOMAXPROCS(0)
	for range max(n-1, min(n, 2)) { // of all kinds
		defer processors.New().Enter(b.Workspace)()
	}
	ended := make(chan error, 1)
	go func() { _, err := b.MoveOnce(bg); ended <- err }()
	b.Eventually("the enrollment is moved", func() bool {
		return b.Count(`select count(*) from enrollments where workspace_id = $1 and flow_id = $2 and version = 2`, b.Workspace, flow) == 1
	})
	b.Must(<-ended)
}

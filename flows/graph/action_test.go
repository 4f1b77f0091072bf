package graph

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// Every pair of waits, against a table.
func TestTimers(t *testing.T) {
	for name, c := range map[string]struct {
		was, is string
		timer   string
		shift   time.Duration
	}{
		"the same delay, written otherwise": {`{"type":"delay","for":"P1D"}`, `{"type":"delay","for":"PT24H","name":"x"}`, "kept", 0},
		"a delay that became an event": {`{"type":"delay","for":"P1D"}`, `{"type":"wait_for_event","event":"a","timeout":"P1D"}`,
			"restarted", 0},
		"another condition": {`{"type":"wait_for_event","event":"a","timeout":"P1D"}`,
			`{"type":"wait_for_event","event":"a","condition":"true","timeout":"P1D"}`, "restarted", 0},
		"another zone": {`{"type":"wait_until","time":"09:00"}`,
			`{"type":"wait_until","time":"09:00","zone":"Asia/Tokyo"}`, "restarted", 0},
		"another date": {`{"type":"wait_until","date_column":"a"}`, `{"type":"wait_until","date_column":"b"}`,
			"restarted", 0},
		"another offset": {`{"type":"wait_until","date_column":"a","offset":"P1D"}`,
			`{"type":"wait_until","date_column":"a"}`, "restarted", 0},
		"a send": {`{"type":"send"}`, `{"type":"send"}`, "restarted", 0},
	} {
		var was, is Node
		if err := json.Unmarshal([]byte(c.was), &was); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(c.is), &is); err != nil {
			t.Fatal(err)
		}
		if timer, shift := timerOf(was, is); timer != c.timer || shift != c.shift {
			t.Errorf("%s: %s by %s", name, timer, shift)
		}
	}
}

// The path for a missing date makes its node reachable.
func TestOnMissingCountsAsAPath(t *testing.T) {
	t.Parallel()
	d := &Definition{Nodes: map[string]Node{"a": {Type: WaitUntil, Next: "b", OnMissing: "c"}, "b": {Type: Exit}, "c": {Type: Exit}}}
	if !Reachable(d, []string{"a"})["c"] {
		t.Error("c can be reached")
	}
}

// Reaching is Reachable from the other end.
func TestReaching(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		d := &Definition{Start: "n0", Nodes: map[string]Node{}}
		const nodes = 8
		for i := range nodes {
			d.Nodes[fmt.Sprint("n", i)] = Node{Type: Delay, Next: fmt.Sprint("n", r.IntN(nodes+2))} // two are no nodes
		}
		some := []string{fmt.Sprint("n", r.IntN(nodes)), fmt.Sprint("n", r.IntN(nodes))}
		towards := Reaching(d, some)
		for _, from := range append(slices.Collect(maps.Keys(d.Nodes)), "") {
			ahead := Reachable(d, []string{from})
			if towards[from] != (ahead[some[0]] || ahead[some[1]]) {
				t.Fatalf("%+v: %s reaches %v: %v", d.Nodes, from, some, towards[from])
			}
		}
	}
}

package execution

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"lemma/flows/graph"
)

// Routes count with their graphs: the variables of their templates may take far more memory.
func TestRoutesAreBoundedByMemory(t *testing.T) {
	t.Parallel()
	var v Versions
	ws, other := uuid.New(), uuid.New()
	keep := func(ws uuid.UUID, nodes int) {
		g, key := &graph.Graph{}, VersionID{uuid.New(), 1}
		v.add(key, compiled{Graph: g, workspace: ws, definition: 1_000, bytes: 1_000})
		r := &Route{Graph: g, sends: map[string]*Send{}}
		for range nodes {
			r.sends[uuid.NewString()] = &Send{variables: []string{strings.Repeat("x", 250<<10)}}
		}
		v.keepRoute(key, r)
		v.keepRoute(key, r) // of another worker
	}
	for range 20 {
		keep(other, 1)
	}
	for range 30 {
		keep(ws, 190)
	}
	memory, kept := 0, map[uuid.UUID]int{}
	for key, r := range v.routes {
		memory += r.memory()
		kept[v.compiled[key].workspace]++
	}
	if memory > compiledTimes*maxCached || kept[ws] != 4 || kept[other] != 20 {
		t.Errorf("%d MiB of routes: %d and %d of another workspace", memory>>20, kept[ws], kept[other])
	}
	total := 0
	for _, c := range v.compiled {
		total += c.bytes
	}
	if total != v.bytes || v.of[ws]+v.of[other] != total {
		t.Errorf("%d bytes are counted as %d, of workspaces as %d", total, v.bytes, v.of[ws]+v.of[other])
	}
}

package execution

import (
	"testing"

	"github.com/google/uuid"

	"lemma/flows/graph"
)

// The cache is bounded by the bytes of definitions, and one workspace has half of it.
func TestCompiledVersionsAreBoundedByBytes(t *testing.T) {
	t.Parallel()
	var v Versions
	small, large := uuid.New(), uuid.New()
	fill := func(ws uuid.UUID, n, bytes int) {
		for range n {
			v.add(VersionID{uuid.New(), 1}, compiled{Graph: &graph.Graph{}, workspace: ws, bytes: bytes})
		}
	}
	of := func(ws uuid.UUID) (n, bytes int) {
		for _, c := range v.compiled {
			if c.workspace == ws {
				n, bytes = n+1, bytes+c.bytes
			}
		}
		return n, bytes
	}
	fill(small, 100, 4<<10)
	fill(large, 50, 250<<10)
	if n, bytes := of(large); n == 0 || bytes > maxCached/2 {
		t.Errorf("one workspace has %d versions of %d bytes", n, bytes)
	}
	if n, _ := of(small); n != 100 {
		t.Errorf("the other has %d of 100 versions left", n)
	}
	for range 10 {
		fill(uuid.New(), 20, 250<<10)
	}
	if n, _ := of(small); n != 100 {
		t.Errorf("large flows of others leave %d of 100 versions", n)
	}
	total := 0
	for _, c := range v.compiled {
		total += c.bytes
	}
	shares := 0
	for _, bytes := range v.of {
		shares += bytes
	}
	if shares != total {
		t.Errorf("%d bytes are cached, the workspaces have %d", total, shares)
	}
	if total > maxCached || total != v.bytes {
		t.Errorf("%d bytes are cached, counted as %d", total, v.bytes)
	}
}

package processors

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
)

// One workspace leaves a processor to the others, and computes with all but that one.
func TestAWorkspaceLeavesAProcessor(t *testing.T) {
	t.Parallel()
	for n, most := range map[int]int{1: 1, 2: 1, 4: 3} {
		p := kind(n, allKinds(n))
		for range most {
			p.Enter(uuid.UUID{1})
		}
		for ws, want := range map[uuid.UUID]bool{{1}: false, {2}: n > 1} {
			if enters(p, ws) != want {
				t.Errorf("%d processors, %d of them taken by one workspace: %s enters: %t", n, most, ws, !want)
			}
		}
	}
}

// enters reports whether a computation of a workspace begins; it goes on.
func enters(p *Processors, workspace uuid.UUID) bool {
	entered := make(chan struct{})
	go func() {
		p.Enter(workspace)
		close(entered)
	}()
	select {
	case <-entered:
		return true
	case <-time.After(20 * time.Millisecond):
		return false
	}
}

// Several kinds together have as many slots of a workspace as it may use. Computations of one kind that
// wait for each other leave the others to other kinds.
func TestAllKindsTogether(t *testing.T) {
	t.Parallel()
	for n, most := range map[int]int{1: 1, 2: 2, 3: 2, 8: 7} {
		together := allKinds(n)
		for i := range most {
			if p := kind(n, together); !enters(p, uuid.UUID{1}) {
				t.Errorf("%d processors: kind %d does not begin", n, i)
			} else if n == 2 && enters(p, uuid.UUID{1}) {
				t.Error("a workspace has both processors of one kind")
			}
		}
		another := kind(n, together)
		if enters(another, uuid.UUID{1}) || !enters(another, uuid.UUID{2}) {
			t.Errorf("%d processors: a workspace computes %d at a time, or another none", n, most+1)
		}
	}
}

// A computation that has its turn, and waits for something else, keeps no other kind of its workspace waiting.
func TestOtherKindsDoNotWaitForATurn(t *testing.T) {
	t.Parallel()
	workspace := uuid.UUID{1}
	for n := 1; n < 4; n++ {
		together := allKinds(n)
		for range 3 {
			turn, err := kind(n, together).Turn(t.Context(), workspace)
			if err != nil {
				t.Fatal(err)
			}
			defer turn.Leave()
		}
		if !enters(kind(n, together), workspace) {
			t.Errorf("of %d processors another kind has none", n)
		}
	}
	p := kind(1, allKinds(1))
	turn, err := p.Turn(t.Context(), workspace)
	if err != nil {
		t.Fatal(err)
	}
	defer turn.Leave()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Turn(ctx, workspace); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that has left: %v", err)
	}
}

// A kind apart does not wait for other kinds of its workspace.
func TestAKindApart(t *testing.T) {
	t.Parallel()
	workspace, together := uuid.UUID{1}, allKinds(1)
	kind(1, together).Enter(workspace)
	if enters(kind(1, together), workspace) || !enters(kind(1, nil), workspace) {
		t.Error("only a kind apart enters beside another kind")
	}
}

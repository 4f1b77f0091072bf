package processors

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma/slots"
)

// One workspace leaves a processor to the others, and computes with all but that one.
func TestAWorkspaceLeavesAProcessor(t *testing.T) {
	t.Parallel()
	first, second := slots.Resource{Workspace: uuid.UUID{1}}, slots.Resource{Workspace: uuid.UUID{2}}
	for n, most := range map[int]int{1: 1, 2: 1, 4: 3} {
		p := &Processors{kind(n), allKinds(n)}
		for range most {
			p.Enter(first.Workspace)
		}
		enters := func(r slots.Resource) bool {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			_, err := p.slots.Await(ctx, r)
			return err == nil
		}
		if enters(first) || enters(second) != (n > 1) {
			t.Errorf("%d processors, %d of them taken by one workspace", n, most)
		}
	}
}

// Each of two kinds has a slot, and all kinds together have as many as there are processors for a workspace.
func TestAllKindsTogether(t *testing.T) {
	t.Parallel()
	for n, most := range map[int]int{1: 1, 2: 2, 3: 2, 8: 7} {
		together := allKinds(n)
		kinds := make([]*Processors, most+1)
		leave := make([]func(), most)
		for i := range kinds {
			kinds[i] = &Processors{kind(n), together}
		}
		for i := range leave {
			leave[i] = kinds[i].Enter(uuid.UUID{1})
		}
		kinds[most].Enter(uuid.UUID{2})()
		entered := make(chan struct{})
		go func() {
			kinds[most].Enter(uuid.UUID{1})()
			close(entered)
		}()
		select {
		case <-entered:
			t.Errorf("%d processors: a workspace computes %d at a time", n, most+1)
		case <-time.After(10 * time.Millisecond):
		}
		leave[0]()
		<-entered
	}
}

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
		p := of(n)
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

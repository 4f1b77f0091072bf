package execution

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
)

// However many branches a source answers slowly, a chunk ends within its lease: the rest
// is blocked after ten seconds.
func TestBranchesOfOneExecutionAreBoundedInTime(t *testing.T) {
	t.Parallel()
	source, other := lemma.NewID(), lemma.NewID()
	s := skips{begun: time.Now().Add(-queryTime / 2), of: map[uuid.UUID]error{}}
	if s.record(source, nil); s.of[source] != nil {
		t.Error("a source that answers is no longer queried after half the time")
	}
	s.begun = s.begun.Add(-queryTime)
	if s.record(source, nil); BlockedReason(s.of[source]) != "source_busy" || s.of[other] != nil {
		t.Errorf("%v", s.of)
	}
}

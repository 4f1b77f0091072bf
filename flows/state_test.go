package flows

import (
	"testing"

	"github.com/google/uuid"

	"lemma"
)

// Verbs lock a flow by flowLock, triggers by flowLockOf.
func TestBothLocksOfAFlowAreOne(t *testing.T) {
	b := setup(t, 0)
	ids := []uuid.UUID{uuid.Nil, uuid.Max, lemma.NewID(), uuid.MustParse("00000000-0000-7000-8000-000000000001"), uuid.MustParse("00000000-0000-7000-7fff-ffffffffffff")}
	for _, id := range ids {
		var inSQL int64
		b.must(b.pool.QueryRow(bg, `select `+flowLockOf("$1::uuid"), id).Scan(&inSQL))
		if inSQL != flowLock(id) {
			t.Errorf("%s is locked as %d by triggers, as %d by verbs", id, inSQL, flowLock(id))
		}
	}
}

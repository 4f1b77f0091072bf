package enrollment

import (
	"testing"

	"github.com/google/uuid"

	"lemma"
	"lemma/pgtest"
)

// Verbs use LockFlow and triggers FlowLockSQL: both are the same lock.
func TestBothLocksOfAFlowAreOne(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	ids := []uuid.UUID{uuid.Nil, uuid.Max, lemma.NewID(), uuid.MustParse("00000000-0000-7000-8000-000000000001"),
		uuid.MustParse("00000000-0000-7000-7fff-ffffffffffff")}
	for _, id := range ids {
		var inSQL int64
		if err := pool.QueryRow(t.Context(), `select `+FlowLockSQL("$1::uuid"), id).Scan(&inSQL); err != nil {
			t.Fatal(err)
		}
		if inSQL != flowLock(id) {
			t.Errorf("%s is locked as %d by triggers, as %d by verbs", id, inSQL, flowLock(id))
		}
	}
}

package sender

import (
	"testing"
	"time"

	"lemma/pgtest"
)

// The times of what a worker records as events are by the clock of the database, whatever that
// of the process: the deferral of one row, and the acceptance of another that it reports when
// it has lost the lease. Conversions are counted from the acceptance.
func TestEventsOfResponsesHaveTheTimeOfTheDatabase(t *testing.T) {
	b := setup(t)
	ref := b.insert(2, 2, 2)[0]
	b.carrier.then[address(0)] = []Outcome{NotAccepted}
	now := time.Now().Add(4 * time.Hour)
	pgtest.SetClock(t, b.Pool, now)
	s := b.sender()
	c, w := b.claimed(s, ref)
	b.commits(s, c, nil, opening(c, w), open)
	done := s.call(bg, c, b.carrier, w, s.paceOf(b.provider), nil)
	s.recordReceipts(bg, c, w)
	b.Must(s.keepEvidence(bg, c, done))
	for _, kind := range []string{"deferred", "accepted"} {
		b.WantCount(1, `select count(*) from provider_events where kind = $1 and occurred_at between $2 and $3`,
			kind, now.Add(-time.Second), now.Add(time.Minute))
	}
}

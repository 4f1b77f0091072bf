package sender

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/notifications"
	"lemma/pgtest"
	"lemma/suppression"
)

// A worker loses the database for longer than its lease, and knows two outcomes: row 0 was
// accepted, and row 2, which no window contains, is suppressed. Meanwhile the reaper gives row
// 0 a second attempt, and another worker skips row 2. That outcome is not the worker's
// commit: the acceptance of row 0 is kept as evidence.
func TestAnOutcomeOfAnotherClaimIsNotOurCommit(t *testing.T) {
	b := setup(t)
	ref := b.insert(3, 3, 2)[0]
	to := pgtest.Column[string](t, b.Pool, `select address from notifications order by ordinal`)
	b.carrier.hangsUp = to[1] // the provider fails after the first message
	small := func(c *Config) { c.MaxWindow, c.SuppressionAge = 2, time.Nanosecond }
	s, other := b.sender(small), b.sender(small)
	s.pool = b.Connect(func(c *pgxpool.Config) {
		c.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	})
	n := 0
	s.Hook = func(_ context.Context, point string, _ notifications.Ref) {
		if point != "committing" {
			return
		}
		switch n++; n {
		case 1: // opens the window of rows 0 and 1
			_, _, err := suppression.New(b.Pool).Add(bg, b.Workspace,
				suppression.Entry{ID: lemma.NewID(), Channel: "email", Address: to[2], Cause: suppression.Manual})
			b.Must(err)
		case 2: // gives the batch back
			b.breakConnections(s.pool)
			b.reap(other)
			b.carrier.hangsUp = ""
			_, err := other.Work(bg, ref) // row 2
			b.Must(err)
		}
	}
	_, err := s.Work(bg, ref)
	b.Must(err)
	b.WantCount(1, `select count(*) from provider_events where source = 'response' and kind = 'accepted'`)
	b.Exec(`delete from provider_meters`) // the provider works again
	b.makeDue()
	b.work(other)
	if n := b.carrier.called(to[0]); n != 1 {
		t.Errorf("the recipient of row 0 got %d copies", n)
	}
}

// An end of a claim that was applied is found, also when another claim has followed.
func TestAnEndThatWasAppliedIsFound(t *testing.T) {
	b := setup(t)
	ref := b.insert(2, 2, 2)[0]
	s := b.sender()
	c, w := b.claimed(s, ref)
	b.commits(s, c, nil, opening(c, w), open)
	done := s.call(bg, c, b.carrier, w, s.paceOf(b.provider), nil)
	for _, e := range []ending{{state: stateDone}, {state: stateReady}} {
		if g, err := s.applied(bg, c, done, e); g != "" || err != nil {
			t.Errorf("before the commit: %q, %v", g, err)
		}
	}
	b.commits(s, c, slices.Clone(done), ending{state: stateDone}, open)
	if g, err := s.applied(bg, c, done, ending{state: stateDone}); g != open || err != nil {
		t.Errorf("after the commit: %q, %v", g, err)
	}
}

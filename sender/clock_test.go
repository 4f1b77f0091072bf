package sender

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/notifications"
	"lemma/pgtest"
)

// An outcome has the time of the answer by the clock of the database, however late it is
// committed, and however long the claim waited before: neither clicks nor conversions are
// compared with the time of the commit.
func TestOutcomesHaveTheTimeOfTheAnswer(t *testing.T) {
	for _, lost := range []bool{false, true} {
		t.Run("", func(t *testing.T) {
			b := setup(t)
			ref := b.insert(2, 2, 2)[0]
			claimed := time.Now().Add(time.Minute).Truncate(time.Microsecond) // defaults of columns have the real time
			opened, committed := claimed.Add(time.Hour), claimed.Add(48*time.Hour)
			pgtest.SetClock(t, b.Pool, claimed)
			s := b.sender()
			c, w := b.claimed(s, ref)
			pgtest.SetClock(t, b.Pool, opened)
			b.commits(s, c, nil, opening(c, w), open)
			if lost { // the answer to the commit
				c.openedAt = time.Time{}
				if g, err := s.applied(bg, c, nil, opening(c, w)); err != nil || g != open {
					t.Fatal(g, err)
				}
			}
			done := s.call(bg, c, b.carrier, w, s.paceOf(b.provider), nil)
			pgtest.SetClock(t, b.Pool, committed)
			b.commits(s, c, done, ending{state: stateDone}, open)
			b.WantCount(2, `select count(*) from attempts where outcome = 'accepted' and at > $1 and at < $2`, opened, opened.Add(12*time.Hour))
			for _, key := range pgtest.Column[uuid.UUID](t, b.Pool, `select key from notifications`) {
				e, err := b.ledger.Explain(bg, b.Workspace, b.origin, key)
				b.Must(err)
				var steps []string
				for _, step := range e.Steps {
					steps = append(steps, step.Event)
				}
				if want := []string{"written", "claimed", "window", "finished", "accepted"}; !slices.Equal(want, steps) {
					t.Errorf("steps %v", steps)
				}
			}
		})
	}
}

// The time of an opening that has waited for a lock is not the time at which it began to wait:
// answers would be dated that much too early.
func TestTheTimeOfAnOpeningIsAfterItsWait(t *testing.T) {
	b := setup(t)
	s := b.sender()
	c, w := b.claimed(s, b.insert(1, 1, 2)[0])
	lock, err := b.Pool.Begin(bg)
	b.Must(err)
	defer func() { _ = lock.Rollback(bg) }()
	_, err = lock.Exec(bg, `select from batches for update`)
	b.Must(err)
	opened := make(chan error)
	go func() { _, err := s.commitOnce(bg, c, nil, opening(c, w)); opened <- err }()
	b.WaitForLocks(1)
	waited := pgtest.One[time.Time](t, b.Pool, `select clock_timestamp()`)
	b.Must(lock.Rollback(bg))
	b.Must(<-opened)
	if c.opened.Before(waited) {
		t.Errorf("opened at %v, but it waited until %v", c.opened, waited)
	}
}

// An answer is after the opening of its window, as explain requires, also when nothing has
// measured the time in between.
func TestAnAnswerIsAfterTheOpeningOfItsWindow(t *testing.T) {
	t.Parallel()
	c := &claim{opened: time.Now().Add(time.Hour), openedAt: time.Now()}
	if at := c.answered(c.openedAt); !at.After(c.opened) {
		t.Errorf("answered at %v, opened at %v", at, c.opened)
	}
	if at := c.answered(time.Time{}); !at.After(c.opened) || at.Sub(c.opened) > time.Minute {
		t.Errorf("an answer without a time at %v, opened at %v", at, c.opened)
	}
}

// The times of what a worker records as events are by the clock of the database, whatever that
// of the process: the deferral of one row, and the acceptance of another that it reports when
// it has lost the lease. Conversions are counted from the acceptance.
func TestEventsOfResponsesHaveTheTimeOfTheDatabase(t *testing.T) {
	b := setup(t)
	ref := b.insert(2, 2, 2)[0]
	b.carrier.then[addressOf(0)] = []Outcome{NotAccepted}
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

// A job for a batch that is due later is due by the clock of the database.
func TestJobsAreDueByTheClockOfTheDatabase(t *testing.T) {
	b := setup(t)
	ref := b.insert(2, 2, 2)[0]
	now := time.Now().Add(-time.Hour)
	pgtest.SetClock(t, b.Pool, now)
	b.Must(pgx.BeginFunc(t.Context(), b.Pool, func(tx pgx.Tx) error {
		return b.ledger.Enqueue(t.Context(), tx, []notifications.Job{{Ref: ref, After: time.Minute}})
	}))
	b.WantCount(1, `select count(*) from river_job where state = 'scheduled' and scheduled_at between $1 and $2`,
		now.Add(59*time.Second), now.Add(61*time.Second))
}

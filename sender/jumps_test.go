package sender

import (
	"testing"
	"time"

	"lemma/events"
	"lemma/pgtest"
)

// The clock of the database is set ahead while a call is being made. The lease seems to have
// expired, and is left to its worker: also by a process that was started since, and with
// events that seem to be late.
func TestAClockSetAheadEndsNoLease(t *testing.T) {
	for name, c := range map[string]struct{ events, started bool }{
		"no events": {}, "events": {events: true}, "a new process": {started: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			if c.events {
				b.reports()
			}
			ref := b.insert(1, 1, 2)[0]
			s, other := b.sender(), b.sender()
			if !c.started {
				b.reaps(other, Reaped{})
			}
			finish := b.pausedWork(s, ref, "opened", 1)
			if c.events { // about another message
				_, err := events.Receive(bg, b.Pool, b.Workspace, []events.Received{{ProviderID: b.provider,
					Report: events.Report{ID: "x", Type: events.TypeDelivered, OccurredAt: time.Now()}}})
				b.Must(err)
			}
			pgtest.SetClock(t, b.Pool, time.Now().Add(10*time.Minute))
			b.reaps(other, Reaped{Kept: 1})
			b.WantCount(1, `select count(*) from batches where status = 'leased'`)
			finish()
			b.WantCount(1, `select count(*) from batches where status = 'done'`)
			if n := b.carrier.called(addressOf(0)); n != 1 {
				t.Errorf("the recipient got %d copies", n)
			}
		})
	}
}

// A lease whose time has passed by the clock that nobody has set is expired, however far ahead
// the clock of the database is; and events are awaited by that clock as well.
func TestALeaseFromBeforeAJumpExpires(t *testing.T) {
	for name, with := range map[string]bool{"no events": false, "events": true} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			if with {
				b.reports()
			}
			ref := b.insert(1, 1, 2)[0]
			other := b.sender()
			b.reaps(other, Reaped{})
			b.kill(ref, "opened", 1)
			pgtest.SetClock(t, b.Pool, time.Now().Add(10*time.Hour))
			b.Exec(`update batches set lease_until = lease_until - interval '6 minutes'`)
			if !with {
				b.reaps(other, Reaped{Batches: 1, Retried: 1})
				return
			}
			b.reaps(other, Reaped{Waiting: 1})
			b.WantCount(1, `select count(*) from batches where status = 'leased' and lease_until < now() - interval '9 hours'`)
			b.Exec(`update batches set lease_until = lease_until - interval '2 minutes'`)
			b.reaps(other, Reaped{Waiting: 1}) // again, and not orphaned as overdue
			b.report(1, 1, events.TypeDelivered, time.Now())
			b.Exec(`update provider_watermarks set recorded_at = occurred_at + interval '1 second'`)
			b.Exec(`update batches set lease_until = lease_until - interval '2 minutes'`)
			b.reaps(other, Reaped{Waiting: 1}) // others may be as late as the newest event
		})
	}
}

// Rows that wait for events, apart from those that were not called, wait as long as without a
// jump.
func TestRowsThatWaitSinceBeforeAJump(t *testing.T) {
	b := setup(t)
	b.reports()
	ref := b.insert(2, 2, 2)[0]
	s, other := b.sender(func(c *Config) { c.MaxWindow = 1 }), b.sender()
	b.reaps(other, Reaped{})
	reached := stop(s, "opened", 1)
	go func() { _, _ = s.Work(bg, ref) }()
	<-reached
	pgtest.SetClock(t, b.Pool, time.Now().Add(10*time.Hour))
	b.Exec(`update batches set lease_until = lease_until - interval '6 minutes'`)
	b.reaps(other, Reaped{Batches: 1, Freed: 1, Waiting: 1})
	b.WantCount(1, `select count(*) from batches where status = 'leased' and lease_until < now() - interval '9 hours'`)
}

func (b *bundle) reaps(s *Sender, want Reaped) {
	b.T.Helper()
	got, err := s.Reap(bg)
	if b.Must(err); got != want {
		b.T.Errorf("%+v instead of %+v", got, want)
	}
}

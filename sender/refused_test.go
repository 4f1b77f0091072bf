package sender

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"lemma/notifications"
	"lemma/pgtest"
)

// elapse lets time pass for ready batches and their rows, and for the rate and circuit of their
// provider.
func (b *bundle) elapse(d time.Duration) {
	b.T.Helper()
	b.Exec(`update batches set due_at = due_at - $1::interval, retry_at = (
		select array_agg(t - $1::interval order by i) from unnest(retry_at) with ordinality as r (t, i)) where status = 'ready'`, d)
	b.Exec(`update provider_meters set next_free_at = next_free_at - $1::interval, open_until = open_until - $1::interval`, d)
}

// dueIn is in which time the only ready batch is due.
func (b *bundle) dueIn() time.Duration {
	b.T.Helper()
	seconds := pgtest.One[float64](b.T, b.Pool,
		`select extract(epoch from due_at - now())::float8 from batches where status = 'ready'`)
	return time.Duration(seconds * float64(time.Second))
}

func (b *bundle) resume() {
	b.T.Helper()
	b.inTx(func(tx pgx.Tx) error { return b.ledger.Unhold(bg, tx, b.Workspace, b.origin) })
}

// interruptions give a claim of 20 rows back after its first window, in which the carrier
// refuses the first row for 10 minutes.
var interruptions = map[string]func(b *bundle, ref notifications.Ref){
	"a wait for the rate": func(b *bundle, ref notifications.Ref) {
		b.Exec(`update providers set rate_per_second = 0.25`)
		b.workOne(b.sender(), ref)
	},
	"a pause and a resume": func(b *bundle, ref notifications.Ref) {
		s := b.sender()
		at(s, "called", 1, func() { hold(b) })
		b.workOne(s, ref)
		b.resume()
	},
	"a shutdown": func(b *bundle, ref notifications.Ref) {
		s := b.sender()
		at(s, "called", 1, s.Drain)
		b.workOne(s, ref)
	},
	"the provider fails": func(b *bundle, ref notifications.Ref) {
		s := b.sender()
		at(s, "called", 1, func() { b.carrier.fail(noConnection) })
		b.workOne(s, ref)
		b.carrier.fail(nil)
	},
	"the worker is killed": func(b *bundle, ref notifications.Ref) {
		killed := b.sender(func(c *Config) { c.MaxWindow = 5 })
		reached := stop(killed, "committing", 3)
		go func() { _, _ = killed.Work(bg, ref) }()
		<-reached
		b.reap(b.sender())
		b.reap(b.sender()) // the second window may have been called
	},
}

func (b *bundle) workOne(s *Sender, ref notifications.Ref) {
	b.T.Helper()
	_, err := s.Work(context.Background(), ref)
	b.Must(err)
}

// However its claim ends, a row that was refused is not called before its own time, and the
// others do not wait for it.
func TestARefusedRowWaitsForItsOwnTime(t *testing.T) {
	for name, interrupt := range interruptions {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			ref := b.insert(20, 20, 2)[0]
			first := b.first(ref)
			b.carrier.then[first], b.carrier.later = []Outcome{NotAccepted, NotAccepted}, 10*time.Minute
			interrupt(b, ref)
			if n := b.carrier.called(first); n != 1 {
				t.Fatalf("%d calls of the refused row before the interruption", n)
			}
			b.Exec(`update providers set rate_per_second = 2`)
			s := b.sender()
			for range 19 {
				b.elapse(6 * time.Second)
				b.work(s)
			}
			if n := b.carrier.called(first); n != 1 {
				t.Errorf("the refused row was called %d times in the first two minutes", n)
			}
			b.wantCounts(notifications.Counts{Sent: 19, Pending: 1})
			b.elapse(9 * time.Minute)
			b.work(s)
			if n := b.carrier.called(first); n != 2 {
				t.Errorf("the refused row was called %d times when its time has come", n)
			}
			b.elapse(10 * time.Minute)
			b.work(s)
			b.wantCounts(notifications.Counts{Sent: 20})
		})
	}
}

// Each refusal of a row doubles its own wait, also while its batch is claimed for others.
func TestEachRefusalDoublesTheWaitOfTheRow(t *testing.T) {
	b := setup(t)
	ref := b.insert(2, 2, 2)[0]
	rows := b.byOrdinal(2)
	for range 8 {
		b.carrier.then[rows[0]] = append(b.carrier.then[rows[0]], NotAccepted)
	}
	for range 40 {
		b.carrier.then[rows[1]] = append(b.carrier.then[rows[1]], NotCalled)
	}
	s := b.sender(func(c *Config) { c.CircuitAfter = 1000 })
	for i, wait := range []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 16 * time.Minute,
		32 * time.Minute, time.Hour} {
		b.workOne(s, ref)
		for _, part := range []time.Duration{0, wait - 10*time.Second} {
			b.elapse(part)
			b.workOne(s, ref)
			if n := b.carrier.called(rows[0]); n != i+1 {
				t.Errorf("%d calls, want %d until %v have passed", n, i+1, wait)
			}
		}
		b.elapse(10 * time.Second)
	}
	b.workOne(s, ref)
	if status, reason := b.status(0); b.carrier.called(rows[0]) != 9 || rows[0] == addressOf(0) && status != "sent" {
		t.Errorf("it is %s (%s) after %d calls", status, reason, b.carrier.called(rows[0]))
	}
}

// A batch whose rows all wait is due when the first may be called, or a few seconds later when
// others may be called as well. If it is claimed before, no row is called.
func TestABatchOfRefusedRowsIsDueWithItsFirst(t *testing.T) {
	b := setup(t)
	ref := b.insert(3, 3, 2)[0]
	b.carrier.rest = NotAccepted
	s := b.sender()
	b.workOne(s, ref)
	b.Exec(`update batches set due_at = now(), retry_at = array[now() + interval '50 s', now() + interval '53 s', now() + interval '60 s']`)
	again, err := s.Work(t.Context(), ref)
	if b.Must(err); again < 48*time.Second || again > 53*time.Second {
		t.Errorf("it is worked again after %v", again)
	}
	if due := b.dueIn(); due < 48*time.Second || due > 53*time.Second {
		t.Errorf("it is due in %v", due)
	}
	for i := range 3 {
		if n := b.carrier.called(addressOf(i)); n != 1 {
			t.Errorf("%s was called %d times", addressOf(i), n)
		}
	}
	b.WantCount(1, `select count(*) from batches where refusals = '{1,1,1}'`)
}

// While the circuit is open, a claim does not probe with a row whose time has not come.
func TestAProbeCallsNoWaitingRow(t *testing.T) {
	b := setup(t)
	ref := b.insert(2, 2, 2)[0]
	first := b.first(ref)
	b.carrier.then[first], b.carrier.later = []Outcome{NotAccepted}, 10*time.Minute
	s := b.sender(func(c *Config) { c.MaxWindow = 1 })
	at(s, "called", 1, func() { b.carrier.fail(noConnection) })
	b.workOne(s, ref)
	b.carrier.fail(nil)
	b.elapse(time.Second)
	b.workOne(s, ref)
	if n := b.carrier.called(first); n != 1 || b.health().CircuitOpen {
		t.Errorf("%d calls, health %+v", n, b.health())
	}
	b.wantCounts(notifications.Counts{Sent: 1, Pending: 1})
}

// Rows with an unknown outcome wait for no time, and leave the times of others as they are.
func TestASplitLeavesTheTimesOfOthers(t *testing.T) {
	b := setup(t)
	ref := b.insert(3, 3, 2)[0]
	rows := b.byOrdinal(3)
	b.carrier.then[rows[0]], b.carrier.then[rows[1]] = []Outcome{Unknown}, []Outcome{NotAccepted}
	b.carrier.then[rows[2]], b.carrier.later = []Outcome{NotCalled}, 10*time.Minute
	s := b.sender()
	b.workOne(s, ref)
	b.WantCount(1, `select count(*) from batches where root_id <> id and retry_at is null`)
	b.work(s)
	b.reap(s)
	b.work(s)
	b.wantCounts(notifications.Counts{Sent: 2, Pending: 1})
	if n := b.carrier.called(rows[1]); n != 1 {
		t.Errorf("the refused row was called %d times", n)
	}
	if due := b.dueIn(); due < 9*time.Minute {
		t.Errorf("the refused row is due in %v", due)
	}
}

// A row that waits for its time is read again with its batch: the check is remembered for the
// batch.
func TestAnOptOutEndsARowThatWaits(t *testing.T) {
	b := setup(t)
	ref := b.insert(2, 2, 2)[0]
	b.carrier.then[addressOf(0)], b.carrier.then[addressOf(1)] = []Outcome{NotAccepted}, []Outcome{NotCalled}
	b.carrier.later = 10 * time.Minute
	b.workOne(b.sender(), ref)
	s, a := b.readAgain(2, func(c *Config) { c.RecheckAfter = time.Hour })
	a.set(0, AudienceRow{Addresses: []string{addressOf(0)}, OptedOut: true})
	hold(b)
	b.resume()
	b.workOne(s, ref)
	b.elapse(10 * time.Minute)
	b.work(s)
	if status, reason := b.status(0); status != "skipped" || reason != "unsubscribed_since" {
		t.Errorf("it is %s (%s)", status, reason)
	}
	b.wantCounts(notifications.Counts{Sent: 1, Skipped: 1})
}

// A time that a wrong clock has set is repaired with that of the batch.
func TestTheTimeOfARefusedRowIsRepaired(t *testing.T) {
	b := setup(t)
	ref := b.insert(1, 1, 2)[0]
	b.carrier.then[addressOf(0)] = []Outcome{NotAccepted}
	s := b.sender()
	b.workOne(s, ref)
	b.elapse(-24 * time.Hour)
	b.repair(s)
	b.workOne(s, ref)
	b.wantCounts(notifications.Counts{Sent: 1})
}

// The reaper gives a row that waits back with its time.
func TestTheReaperKeepsTheTimeOfARefusedRow(t *testing.T) {
	b := setup(t)
	ref := b.insert(1, 1, 2)[0]
	b.carrier.then[addressOf(0)], b.carrier.later = []Outcome{NotAccepted}, 10*time.Minute
	b.workOne(b.sender(), ref)
	b.Exec(`update batches set due_at = now()`)
	if c, err := b.sender().Claim(bg, ref); c == nil || err != nil {
		t.Fatal(c, err)
	}
	b.reap(b.sender())
	if due := b.dueIn(); due < 9*time.Minute || due > 10*time.Minute {
		t.Errorf("it is due in %v", due)
	}
}

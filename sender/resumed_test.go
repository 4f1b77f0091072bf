package sender

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/notifications"
)

// pauseAndResume does both; what happens during the pause comes in between.
func (b *bundle) pauseAndResume(during func()) {
	b.T.Helper()
	ctx := context.Background()
	b.Must(pgx.BeginFunc(ctx, b.Pool, func(tx pgx.Tx) error { return b.ledger.Hold(ctx, tx, b.Workspace, b.origin) }))
	during()
	b.Must(pgx.BeginFunc(ctx, b.Pool, func(tx pgx.Tx) error { return b.ledger.Unhold(ctx, tx, b.Workspace, b.origin) }))
}

func anHour(c *Config) { c.RecheckAfter = time.Hour }

// A profile that opts out during a pause is not called, however short it was, and no
// batch is read twice.
func TestAResumeReadsTheAudienceAgain(t *testing.T) {
	b := setup(t)
	b.insert(6, 3, 2)
	s, a := b.readAgain(6, anHour)
	b.carrier.then[addressOf(5)] = []Outcome{NotAccepted}
	b.pauseAndResume(func() { a.set(1, AudienceRow{Addresses: []string{addressOf(1)}, OptedOut: true}) })
	for range 2 {
		b.makeDue()
		b.work(s)
	}
	if status, reason := b.status(1); status != "skipped" || reason != "unsubscribed_since" {
		t.Errorf("it is %s (%s)", status, reason)
	}
	b.wantCounts(notifications.Counts{Sent: 5, Skipped: 1})
	if a.reads != 2 {
		t.Errorf("the audience was read %d times", a.reads)
	}
}

// What a clock of the database that was changed makes of the time of a resume.
var clocks = map[string]string{"": "0", ", and the clock goes back": "-1 day", ", and the clock was ahead": "1 day"}

// A worker that holds a batch during a pause opens no further window after the resume:
// its rows are claimed and read again.
func TestAClaimFromBeforeAPauseOpensNoWindow(t *testing.T) {
	for name, change := range clocks {
		t.Run("it is resumed"+name, func(t *testing.T) {
			b := setup(t)
			refs := b.insert(3, 3, 2)
			s, a := b.readAgain(3, anHour)
			finish := b.pausedWork(s, refs[0], "rated", 1)
			b.pauseAndResume(func() { a.set(1, AudienceRow{Addresses: []string{addressOf(1)}, OptedOut: true}) })
			b.Exec(`update batches set resumed_at = resumed_at + $1::interval`, change)
			finish()
			if n := b.carrier.called(addressOf(0)); n != 0 {
				t.Errorf("%d calls by the claim", n)
			}
			b.work(s)
			b.wantCounts(notifications.Counts{Sent: 2, Skipped: 1})
		})
	}
}

// What a process has read before a pause it does not take as read after the resume.
func TestAResumeEndsWhatAProcessRemembers(t *testing.T) {
	for name, change := range clocks {
		t.Run("it is resumed"+name, func(t *testing.T) {
			b := setup(t)
			b.insert(2, 2, 2)
			s, a := b.readAgain(2, anHour)
			b.carrier.then[addressOf(0)] = []Outcome{NotAccepted}
			b.carrier.then[addressOf(1)] = []Outcome{NotAccepted}
			b.pauseAndResume(func() {})
			b.work(s)
			b.pauseAndResume(func() { a.set(1, AudienceRow{Addresses: []string{addressOf(1)}, OptedOut: true}) })
			b.Exec(`update batches set resumed_at = resumed_at + $1::interval`, change)
			b.makeDue()
			b.work(s)
			if a.reads != 2 || b.carrier.called(addressOf(1)) != 1 {
				t.Errorf("the audience was read %d times, and %d calls", a.reads, b.carrier.called(addressOf(1)))
			}
			b.wantCounts(notifications.Counts{Sent: 1, Skipped: 1})
		})
	}
}

// What was read before a pause does not count as read after the resume, though the reading ended
// after it.
func TestAResumeWhileTheAudienceIsRead(t *testing.T) {
	b := setup(t)
	b.insert(2, 2, 2)
	s, a := b.readAgain(2, anHour)
	b.pauseAndResume(func() {})
	var once sync.Once
	s.again = func(ctx context.Context, ws, origin, content uuid.UUID, channel lemma.Channel, profiles []string,
		yield func(string, AudienceRow)) (bool, error) {
		known, err := a.again(ctx, ws, origin, content, channel, profiles, yield)
		once.Do(func() {
			b.pauseAndResume(func() { a.set(1, AudienceRow{Addresses: []string{addressOf(1)}, OptedOut: true}) })
		})
		return known, err
	}
	b.work(s)
	if n := b.calls(); n != 0 {
		t.Errorf("%d calls by the claim", n)
	}
	b.makeDue()
	b.work(s)
	b.wantCounts(notifications.Counts{Sent: 1, Skipped: 1})
}

// A resume also ends what was read of second attempts of rows that were being called meanwhile.
func TestASecondAttemptAfterAResumeIsReadAgain(t *testing.T) {
	for name, call := range map[string]func(b *bundle, s *Sender) (finish func()){
		"of a batch": func(b *bundle, s *Sender) func() {
			b.carrier.then[addressOf(0)] = []Outcome{Unknown}
			return b.pausedWork(s, b.insert(1, 1, 2)[0], "called", 1)
		},
		"of rows that were split": func(b *bundle, s *Sender) func() {
			b.carrier.then[addressOf(0)] = []Outcome{Unknown}
			b.carrier.then[addressOf(1)] = []Outcome{NotAccepted}
			return b.pausedWork(s, b.insert(3, 3, 2)[0], "called", 1)
		},
		"of rows that waited for events": func(b *bundle, _ *Sender) func() {
			b.reports()
			b.kill(b.insert(30, 30, 2)[0], "opened", 2)
			return func() {}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			s, a := b.readAgain(30, anHour)
			finish := call(b, s)
			b.pauseAndResume(func() {
				for i := range 30 {
					a.set(i, AudienceRow{Addresses: []string{addressOf(i)}, OptedOut: true})
				}
			})
			finish()
			b.reap(s)
			b.Exec(`update providers set receives = false where id = $1`, b.provider)
			b.reap(s)
			before := b.calls()
			b.makeDue()
			b.work(s)
			if n := b.calls() - before; n != 0 {
				t.Errorf("%d calls after the resume", n)
			}
			if c := b.counts(); c.Orphaned == 0 || c.Pending+c.Processing > 0 {
				t.Errorf("counts %+v", c)
			}
		})
	}
}

// calls are all calls of the carrier.
func (b *bundle) calls() (n int) {
	b.carrier.mu.Lock()
	defer b.carrier.mu.Unlock()
	for _, of := range b.carrier.calls {
		n += of
	}
	return n
}

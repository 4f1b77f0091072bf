package sender

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"lemma/notifications"
)

// nextSecond waits until the Date of the next call is another one than that of the first
// message to an address, which may be ahead by as long as its claim took. A Date has whole seconds
// of the real clock, so that no signal can end the wait.
func (b *bundle) nextSecond(address string) {
	time.Sleep(time.Until(b.carrier.sent[address][0].Date.Add(1100 * time.Millisecond)))
}

// A message carries the time of its call, however long ago the audience was read.
func TestDateIsWhenItIsCalled(t *testing.T) {
	b := setup(t)
	b.insert(3, 3, 2)
	b.Exec(`update notifications set created_at = now() - interval '3 hours' where workspace_id = $1`, b.Workspace)
	b.carrier.then[addressOf(1)] = []Outcome{NotAccepted}
	s := b.sender()
	b.work(s)
	first := b.carrier.sent[addressOf(1)][0].Date
	b.nextSecond(addressOf(1))
	b.makeDue()
	b.work(s)
	for i, calls := range [][]Message{b.carrier.sent[addressOf(0)], b.carrier.sent[addressOf(1)]} {
		for _, m := range calls {
			if age := time.Since(m.Date); age < 0 || age > time.Minute {
				t.Errorf("recipient %d: a date of %v ago", i, age)
			}
		}
	}
	if again := b.carrier.sent[addressOf(1)][1].Date; !again.After(first) {
		t.Errorf("a message that was not accepted is called again with the date %v of the first call", again)
	}
}

// byOrdinal are the addresses of n recipients in the order of their rows.
func (b *bundle) byOrdinal(n int) []string {
	b.T.Helper()
	rows, _ := b.Pool.Query(context.Background(), `select address from notifications where workspace_id = $1 order by ordinal limit $2`,
		b.Workspace, n)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(all) != n {
		b.T.Fatal(len(all), err)
	}
	return all
}

// The second attempt repeats the first's date, also when other rows were called in
// between, by a window that contains its ordinal: before the reaper has decided, or
// after.
func TestDateOfTheSecondAttempt(t *testing.T) {
	for name, reapsFirst := range map[string]bool{"others before the reaper": false, "the reaper before others": true} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			b.insert(3, 3, 2)
			recipients := b.byOrdinal(3)
			b.carrier.then[recipients[0]], b.carrier.then[recipients[2]] = []Outcome{NotAccepted}, []Outcome{NotAccepted}
			b.carrier.then[recipients[1]] = []Outcome{Unknown}
			b.work(b.sender())
			if reapsFirst {
				b.reap(b.sender())
			}
			b.nextSecond(recipients[0])
			b.makeDue()
			for _, ref := range b.batches("id = root_id") {
				if _, err := b.sender().Work(context.Background(), ref); err != nil {
					t.Fatal(err)
				}
			}
			b.reap(b.sender())
			b.work(b.sender())
			of := func(i, call int) time.Time { return b.carrier.sent[recipients[i]][call].Date }
			if !of(1, 1).Equal(of(1, 0)) {
				t.Errorf("the second attempt has the date %v, the first %v", of(1, 1), of(1, 0))
			}
			if !of(0, 1).After(of(0, 0)) || !of(2, 1).Equal(of(0, 1)) {
				t.Errorf("the others have the dates %v and %v", of(0, 1), of(2, 1))
			}
		})
	}
}

// A date survives a crash between the window's commit and its calls: the second
// attempt repeats it, although the first may not have been sent.
func TestDateSurvivesACrash(t *testing.T) {
	b := setup(t)
	b.insert(1, 1, 2)
	killed := b.sender()
	reached := stop(killed, "called", 1)
	go func() { _, _ = killed.Work(t.Context(), b.batches("true")[0]) }()
	<-reached
	s := b.sender()
	b.reap(s)
	b.nextSecond(addressOf(0))
	b.work(s)
	sent := b.carrier.sent[addressOf(0)]
	if len(sent) != 2 || !sent[0].Date.Equal(sent[1].Date) || sent[0].Date.IsZero() {
		t.Errorf("%d messages, dates %v and %v", len(sent), sent[0].Date, sent[len(sent)-1].Date)
	}
}

// The database's clock goes back after a window was opened, by a correction or
// because a standby takes over. The second attempt is made all the same, with
// the first's date.
func TestDateAfterTheClockWentBack(t *testing.T) {
	b := setup(t)
	ref, recipients := b.insertOneUnknown(2)
	if _, err := b.sender().Work(bg, ref); err != nil {
		t.Fatal(err)
	}
	b.Exec(`update batch_log set at = at + interval '1 hour' where event = 'window'`) // all others are written later
	e, err := b.ledger.Explain(bg, b.Workspace, b.origin, keyOf(recipients[3]))
	if err != nil || e.DeliveriesAtMost != 1 || e.DeliveriesPossible != 2 {
		t.Errorf("after the first call: at most %d deliveries, %d possible; %v", e.DeliveriesAtMost, e.DeliveriesPossible, err)
	}
	b.nextSecond(addressOf(recipients[3]))
	b.work(b.sender())
	b.reap(b.sender())
	b.work(b.sender())
	b.wantCounts(notifications.Counts{Sent: 10})
	if sent := b.carrier.sent[addressOf(recipients[3])]; len(sent) != 2 || !sent[0].Date.Equal(sent[1].Date) {
		t.Errorf("%d messages, with the dates %v and %v", len(sent), sent[0].Date, sent[len(sent)-1].Date)
	}
}

// A window whose commit took so long that the date would be wrong is not called.
func TestStaleDateIsNotSent(t *testing.T) {
	b := setup(t)
	refs := b.insert(1, 1, 2)
	s := b.sender()
	c, err := s.Claim(context.Background(), refs[0])
	b.Must(err)
	w := &window{rows: []int16{0}, messages: make([]Message, 1)}
	c.date(w)
	if c.stale(w) {
		t.Error("stale at once")
	}
	c.clock = c.clock.Add(dateLasts + time.Second)
	if !c.stale(w) {
		t.Error("not stale after the bound")
	}
}

// Messages begin within the window's time, the lease and the send deadline.
func TestStartBy(t *testing.T) {
	now := time.Now()
	s := &Sender{cfg: Config{CallTimeout: time.Second}}
	for name, c := range map[string]struct{ until, expires, want time.Duration }{
		"the window":                          {time.Hour, time.Hour, windowLasts},
		"the lease, less the call on the way": {10 * time.Second, time.Hour, 9 * time.Second},
		"the send deadline":                   {time.Hour, 5 * time.Second, 5 * time.Second},
	} {
		w := &window{messages: make([]Message, 2)}
		s.startBy(&claim{until: now.Add(c.until), expires: now.Add(c.expires)}, w, now)
		if d := cmp.Diff(c.want, w.messages[1].StartBy.Sub(now)); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

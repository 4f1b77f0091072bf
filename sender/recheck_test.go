package sender

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/notifications"
)

// source is an origin's audience as it is now.
type source struct {
	mu       sync.Mutex
	rows     map[string][]AudienceRow // by profile key
	fails    error
	reads    int
	hangs    chan struct{} // when set: until it is closed
	received chan struct{} // when set: receives a value for each read
}

func (a *source) again(ctx context.Context, _, _, _ uuid.UUID, _ lemma.Channel, profiles []string,
	yield func(string, AudienceRow)) (bool, error) {
	a.mu.Lock()
	a.reads++
	hangs, fails, rows := a.hangs, a.fails, a.rows
	a.mu.Unlock()
	if a.received != nil {
		a.received <- struct{}{}
	}
	if hangs != nil {
		select {
		case <-hangs:
		case <-ctx.Done():
			return true, ctx.Err()
		}
	}
	for _, p := range profiles {
		for _, now := range rows[p] {
			yield(p, now)
		}
	}
	return true, fails
}

func (a *source) set(profile int, rows ...AudienceRow) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rows[fmt.Sprint(profile)] = rows
}

// readAgain makes a sender that reads every audience again, in which nothing has
// changed.
func (b *bundle) readAgain(n int, change ...func(*Config)) (*Sender, *source) {
	b.T.Helper()
	a := &source{rows: map[string][]AudienceRow{}}
	for i := range n {
		a.set(i, AudienceRow{Addresses: []string{addressOf(i)}})
	}
	s := b.sender(append([]func(*Config){func(c *Config) { c.RecheckAfter = time.Nanosecond }}, change...)...)
	s.again = a.again
	return s, a
}

// A profile that has unsubscribed, left or moved while its notification waited is
// skipped with a reason; all others are called.
func TestAWaitingProfileThatUnsubscribedIsSkipped(t *testing.T) {
	b := setup(t)
	b.insert(9, 9, 2)
	s, a := b.readAgain(9)
	a.set(0, AudienceRow{Addresses: []string{addressOf(0)}, OptedOut: true})
	a.set(1)
	a.set(2, AudienceRow{Addresses: []string{"another@shop.example"}})
	a.set(3, AudienceRow{Addresses: []string{"other@shop.example", addressOf(3)}})
	a.set(4, AudienceRow{Addresses: []string{"other@shop.example"}}, AudienceRow{Addresses: []string{addressOf(4)}})
	a.set(5, AudienceRow{Addresses: []string{addressOf(5)}}, AudienceRow{Addresses: []string{addressOf(5)}, OptedOut: true}) // has two rows
	a.set(6, AudienceRow{OptedOut: true})                                                                                    // has none
	a.set(8, AudienceRow{Addresses: []string{"other@shop.example"}, OptedOut: true}, AudienceRow{Addresses: []string{addressOf(8)}})
	b.work(s)
	want := map[int]string{8: "unsubscribed_since", 0: "unsubscribed_since", 1: "left_audience", 2: "address_changed", 3: "", 4: "",
		5: "unsubscribed_since", 6: "unsubscribed_since", 7: ""}
	for i, reason := range want {
		status, why := b.status(i)
		sent := reason == ""
		if (status == "sent") != sent || (status == "skipped") == sent || why != reason || (b.carrier.called(addressOf(i)) == 1) != sent {
			t.Errorf("%d is %s (%s) after %d calls, want reason %q", i, status, why, b.carrier.called(addressOf(i)), reason)
		}
	}
	b.wantCounts(notifications.Counts{Sent: 3, Skipped: 6})
	if d := cmp.Diff(map[string]int64{"unsubscribed_since": 4, "left_audience": 1, "address_changed": 1}, b.counts().SkippedBy); d != "" {
		t.Error(d)
	}
	e, err := b.ledger.Explain(context.Background(), b.Workspace, b.origin, keyOf(0))
	if err != nil || !strings.Contains(fmt.Sprint(e.Steps), "unsubscribed_since") ||
		!strings.Contains(fmt.Sprint(e.Steps), "read again") || e.DeliveriesAtMost != 0 {
		t.Errorf("%v: %s, %+v", err, e.Summary, e.Steps)
	}
}

// A notification that a later run of the fan-out has found opted out is not called,
// without a question to the audience.
func TestAMarkedOptOutIsNotCalled(t *testing.T) {
	b := setup(t)
	b.insert(6, 3, 2)
	marks := []uuid.UUID{keyOf(1), keyOf(3), notifications.OptOutOf("4"), keyOf(5), keyOf(99)} // with 3, 4 and 5 a whole batch
	for _, key := range marks {
		b.Exec(`insert into opt_outs (workspace_id, origin_id, id) values ($1, $2, $3)`, b.Workspace, b.origin, key)
	}
	b.Exec(`insert into opt_outs (workspace_id, origin_id, id) values ($1, gen_random_uuid(), $2)`, b.Workspace, keyOf(0)) // of another origin
	b.work(b.sender())
	for i, sent := range []bool{true, false, true, false, false, false} {
		if status, reason := b.status(i); (b.carrier.called(addressOf(i)) == 1) != sent || (status == "sent") != sent ||
			(reason == "unsubscribed_since") == sent {
			t.Errorf("%d is %s (%s) after %d calls", i, status, reason, b.carrier.called(addressOf(i)))
		}
	}
	b.wantCounts(notifications.Counts{Sent: 2, Skipped: 4})
}

// A batch without remaining rows ends, and reasons add up over its claims.
func TestReasonsOfABatchAddUp(t *testing.T) {
	b := setup(t)
	b.insert(4, 4, 2)
	b.carrier.then[addressOf(2)] = []Outcome{NotAccepted}
	b.carrier.then[addressOf(3)] = []Outcome{NotAccepted}
	s, a := b.readAgain(4)
	a.set(0, AudienceRow{Addresses: []string{addressOf(0)}, OptedOut: true})
	b.work(s)
	a.set(2)
	a.set(3, AudienceRow{Addresses: []string{addressOf(3)}, OptedOut: true})
	b.makeDue()
	b.work(s)
	b.wantCounts(notifications.Counts{Sent: 1, Skipped: 3})
	if d := cmp.Diff(map[string]int64{"unsubscribed_since": 2, "left_audience": 1}, b.counts().SkippedBy); d != "" {
		t.Error(d)
	}
}

// Rows that have not waited for long are not read again, nor is a batch that was read
// again a moment ago.
func TestFreshRowsAreNotReadAgain(t *testing.T) {
	b := setup(t)
	refs := b.insert(4, 2, 2)
	s, a := b.readAgain(4, func(c *Config) { c.RecheckAfter = time.Hour })
	b.Exec(`update batches set created_at = now() - interval '2 hours' where id = $1`, refs[0].BatchID)
	b.carrier.then[addressOf(0)] = []Outcome{NotAccepted}
	b.carrier.then[addressOf(1)] = []Outcome{NotAccepted, NotAccepted}
	b.carrier.then[addressOf(2)] = []Outcome{NotAccepted}
	for range 3 {
		b.work(s)
		b.makeDue()
	}
	b.wantCounts(notifications.Counts{Sent: 4})
	if a.reads != 1 {
		t.Errorf("the audience was read %d times", a.reads)
	}
}

// Recheck!NoCallOnOldData: a read counts for RecheckAfter, and no longer.
func TestABatchIsReadAgainAfterTheBound(t *testing.T) {
	b := setup(t)
	refs := b.insert(2, 2, 2)
	s, a := b.readAgain(2, func(c *Config) { c.RecheckAfter = time.Hour })
	b.Exec(`update batches set created_at = now() - interval '2 hours'`)
	b.carrier.then[addressOf(0)] = []Outcome{NotAccepted}
	b.work(s)
	a.set(0, AudienceRow{Addresses: []string{addressOf(0)}, OptedOut: true})
	s.rechecks.checked[refs[0].BatchID] = check{at: time.Now().Add(-61 * time.Minute)}
	b.makeDue()
	b.work(s)
	b.wantCounts(notifications.Counts{Sent: 1, Skipped: 1})
}

// The age of a second attempt is that of the first.
func TestASecondAttemptIsReadAgain(t *testing.T) {
	b := setup(t)
	b.insert(1, 1, 2)
	s, a := b.readAgain(1, func(c *Config) { c.RecheckAfter = time.Hour })
	b.carrier.then[addressOf(0)] = []Outcome{Unknown}
	b.work(s)
	b.reap(s)
	b.Exec(`update batches set created_at = now() - interval '2 hours' where attempt = 1`)
	a.set(0, AudienceRow{Addresses: []string{addressOf(0)}, OptedOut: true})
	b.work(s)
	if status, reason := b.status(0); status != "orphaned" || reason != "unknown_then_skipped" || b.carrier.called(addressOf(0)) != 1 {
		t.Errorf("it is %s (%s) after %d calls", status, reason, b.carrier.called(addressOf(0)))
	}
	b.wantCounts(notifications.Counts{Orphaned: 1})
}

// While the audience cannot be read, no row is called and none is lost; the log of the
// batch has the reason.
func TestNoRowIsCalledUnchecked(t *testing.T) {
	for name, fails := range map[string]error{
		"down":  &lemma.Error{Kind: lemma.Unavailable, Code: "source_unavailable", Message: "the source does not answer"},
		"wrong": &lemma.Error{Kind: lemma.Invalid, Code: "source_changed", Message: "the column is gone"},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			refs := b.insert(3, 3, 2)
			s, a := b.readAgain(3)
			a.fails = fails
			again, err := s.Work(context.Background(), refs[0])
			if err != nil || again < time.Second {
				t.Errorf("again in %v, %v", again, err)
			}
			b.wantCounts(notifications.Counts{Pending: 3})
			var detail string
			var late bool
			err = b.Pool.QueryRow(context.Background(),
				`select l.detail, b.due_at > now() from batch_log l
					join batches b on b.id = l.batch_id where l.event = 'released'`).Scan(&detail, &late)
			if err != nil || !late || !strings.Contains(detail, fails.(*lemma.Error).Message) {
				t.Errorf("due later %v, %q, %v", late, detail, err)
			}
			b.makeDue()
			b.work(s) // within the pause
			if a.reads != 1 || b.carrier.called(addressOf(0)) != 0 {
				t.Errorf("read %d times, called %d times", a.reads, b.carrier.called(addressOf(0)))
			}
			a.fails = nil
			s.rechecks.reads = nil
			b.makeDue()
			b.work(s)
			b.wantCounts(notifications.Counts{Sent: 3})
		})
	}
}

// An internal error is an error of the job, and no row is called either.
func TestAnInternalErrorCallsNoRow(t *testing.T) {
	b := setup(t)
	refs := b.insert(3, 3, 2)
	s, a := b.readAgain(3)
	a.fails = errors.New("a fault")
	if _, err := s.Work(context.Background(), refs[0]); err == nil {
		t.Error("no error")
	}
	b.wantCounts(notifications.Counts{Pending: 3})
}

// A source that hangs holds few senders: the others go on with other work.
func TestASourceThatHangsHoldsFewSenders(t *testing.T) {
	b := setup(t)
	refs := b.insert(12, 1, 2)
	s, a := b.readAgain(12)
	a.hangs = make(chan struct{})
	var working sync.WaitGroup
	back := make(chan time.Duration, len(refs))
	for _, ref := range refs {
		working.Go(func() {
			again, err := s.Work(context.Background(), ref)
			if err != nil {
				t.Error(err)
			}
			back <- again
		})
	}
	for range len(refs) - readsAtOnce {
		if again := <-back; again <= 0 {
			t.Error("a batch was not given back")
		}
	}
	close(a.hangs)
	working.Wait()
	if a.reads != readsAtOnce {
		t.Errorf("%d reads at once", a.reads)
	}
	a.hangs = nil
	b.makeDue()
	b.work(s)
	b.wantCounts(notifications.Counts{Sent: 12})
	if n := len(s.rechecks.reads); n != 0 {
		t.Errorf("%d origins are remembered", n)
	}
}

// A process that shuts down waits for no source.
func TestDrainEndsTheRead(t *testing.T) {
	b := setup(t)
	refs := b.insert(1, 1, 2)
	s, a := b.readAgain(1)
	a.hangs, a.received = make(chan struct{}), make(chan struct{})
	defer close(a.hangs)
	back := make(chan error)
	go func() { _, err := s.Work(context.Background(), refs[0]); back <- err }()
	select {
	case <-a.received:
	case <-back:
		t.Fatal("nothing was read")
	}
	s.Drain()
	select {
	case err := <-back:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it waits for the source")
	}
	b.wantCounts(notifications.Counts{Pending: 1})
}

// A pause during the read: rows that must end are ended, and none is called.
func TestAPauseDuringTheRead(t *testing.T) {
	b := setup(t)
	refs := b.insert(2, 2, 2)
	s, a := b.readAgain(2)
	a.set(0, AudienceRow{Addresses: []string{addressOf(0)}, OptedOut: true})
	reads := s.again
	s.again = func(ctx context.Context, ws, origin, content uuid.UUID, channel lemma.Channel, profiles []string,
		yield func(string, AudienceRow)) (bool, error) {
		err := pgx.BeginFunc(ctx, b.Pool, func(tx pgx.Tx) error { return b.ledger.Hold(ctx, tx, b.Workspace, b.origin) })
		known, _ := reads(ctx, ws, origin, content, channel, profiles, yield)
		return known, err
	}
	if _, err := s.Work(context.Background(), refs[0]); err != nil {
		t.Fatal(err)
	}
	b.wantCounts(notifications.Counts{Skipped: 1, Pending: 1})
}

// BenchmarkRowsOfOneProfile compares the rows of a batch with rows of an audience that all have one key.
func BenchmarkRowsOfOneProfile(b *testing.B) {
	rows, profiles := make([]row, 500), make([]string, 500)
	for i := range rows {
		rows[i].Address, profiles[i] = addressOf(i), "one"
	}
	c := newCalled(lemma.Email, rows, profiles)
	for i := 0; b.Loop(); i++ {
		c.compare("one", AudienceRow{Addresses: []string{addressOf(i)}})
	}
}

package direct

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"lemma/pgtest"
	"lemma/sender"
)

// Consumers of a queue that delivers each request several times, also after a crash of its
// consumer at any step: each ends with an answer, and one message is sent for each key.
func TestConsumersOfAQueue(t *testing.T) {
	for strategy, then := range map[string]string{AtMostOnce: filtered, AtLeastOnce: locked} {
		t.Run(strategy, func(t *testing.T) { consume(setup(t), strategy, then) })
	}
}

func consume(b *bundle, strategy, then string) {
	const keys, consumers, deliveries = 12, 6, 4
	var mu sync.Mutex
	answers := map[string]map[string]int{}
	var all sync.WaitGroup
	for range consumers {
		d := b.process()
		crash := errCrash{}
		d.Hook = func(context.Context, string) {
			if rand.IntN(6) == 0 {
				panic(crash)
			}
		}
		all.Go(func() {
			for i := range keys * deliveries {
				key := fmt.Sprint(i % keys)
				r := b.ofProfile(key, func(r *Request) { r.Strategy, r.LockFor = strategy, time.Second })
				got := deliver(b, d, r)
				mu.Lock()
				if answers[key] == nil {
					answers[key] = map[string]int{}
				}
				answers[key][got]++
				mu.Unlock()
			}
		})
	}
	all.Wait()
	b.Exec(`update direct_keys set locked_until = now() where not stored`) // of consumers that crashed
	d := b.process()
	for i := range keys {
		s, err := d.Send(context.Background(), b.Workspace, b.ofProfile(fmt.Sprint(i), func(r *Request) { r.Strategy = strategy }))
		if got := answerOf(s, err); got != then && got != accepted {
			b.T.Errorf("at last %d is %s", i, got)
		}
	}
	b.WantCount(keys, `select count(*) from notifications`)
	s := b.sender()
	b.work(s)
	if n := b.calls(); n != keys {
		b.T.Errorf("%d calls for %d keys; answers: %v", n, keys, answers)
	}
	for i := range keys {
		b.send(d, b.ofProfile(fmt.Sprint(i), func(r *Request) { r.Strategy = strategy }), filtered)
	}
}

type errCrash struct{}

// deliver delivers a request once. A crash has no answer.
func deliver(b *bundle, d *Direct, r Request) (got string) {
	defer func() {
		if _, crashed := recover().(errCrash); crashed {
			got = "crashed"
		}
	}()
	// As a bulk of one: a panic of the caller, and not of a goroutine.
	out, err := d.SendAll(context.Background(), b.Workspace, []Request{r})
	if err != nil {
		return answerOf(Sent{}, err)
	}
	return answerOf(out[0].Sent, out[0].Err)
}

// Under at_most_once the key is sealed before the call, and stays sealed when the outcome
// is unknown: the notification is orphaned, which the answer shows.
func TestAtMostOnceSealsFirst(t *testing.T) {
	b := setup(t)
	d, s := b.process(), b.sender()
	b.scripted(sender.Unknown)
	first := b.send(d, b.request("k"), accepted)
	b.send(d, b.request("k"), filtered)
	b.work(s)
	if n := b.send(d, b.request("k"), filtered); n.Status != "processing" {
		t.Errorf("before the reaper it is %s", n.Status)
	}
	b.reap(s)
	b.work(s)
	if n := b.send(d, b.request("k"), filtered); n.Status != "orphaned" || n.Key != first.Key || b.calls() != 1 {
		t.Errorf("it is %s after %d calls", n.Status, b.calls())
	}
}

// Under at_least_once an unknown outcome has a second attempt and no third, and the key is
// locked until the end.
func TestAtLeastOnceIsBoundedByTwo(t *testing.T) {
	b := setup(t)
	d, s := b.process(), b.sender()
	b.scripted(sender.Unknown)
	b.send(d, b.request("k", twice), accepted)
	for want := 1; want <= 2; want++ {
		b.work(s)
		if n := b.calls(); n != want {
			t.Fatalf("%d calls, want %d", n, want)
		}
		b.send(d, b.request("k", twice), locked)
		b.reap(s)
	}
	b.work(s)
	if n := b.send(d, b.request("k", twice), filtered); n.Status != "orphaned" || b.calls() != 2 {
		t.Errorf("it is %s after %d calls", n.Status, b.calls())
	}
}

// A notification that waits for its time keeps its key, however long a lock lasts.
func TestAWaitingNotificationKeepsItsKey(t *testing.T) {
	b := setup(t)
	d := b.process()
	later := time.Now().Add(24 * time.Hour)
	at := func(r *Request) { r.SendAt, r.LockFor, r.SealFor = &later, time.Second, time.Second }
	b.send(d, b.request("once", at), accepted)
	b.send(d, b.request("twice", at, twice), accepted)
	b.Exec(`update direct_keys set locked_until = now() - interval '1 day'`)
	b.send(d, b.request("once", at), filtered)
	b.send(d, b.request("twice", at, twice), locked)
	b.WantCount(2, `select count(*) from notifications`)
}

// A definite refusal seals the key. A failure for a cause that may pass unlocks it.
func TestFailuresSealOrUnlock(t *testing.T) {
	b := setup(t)
	d := b.process()
	s := b.sender(func(c *sender.Config) { c.MaxDeferrals, c.DeferFor = 1, time.Millisecond })
	b.scripted(sender.Rejected)
	b.send(d, b.request("definite", twice), accepted)
	b.work(s)
	if n := b.send(d, b.request("definite", twice), filtered); n.Status != "failed" {
		t.Errorf("it is %s", n.Status)
	}
	b.scripted(sender.NotAccepted)
	first := b.send(d, b.request("transient"), accepted)
	for range 2 {
		b.Exec(`update batches set due_at = now() where status = 'ready'`)
		b.work(s)
	}
	b.scripted(sender.Accepted)
	again := b.send(d, b.request("transient"), accepted)
	b.work(s)
	if n := b.send(d, b.request("transient"), filtered); n.Status != "sent" || n.Key != again.Key || n.Key == first.Key {
		t.Errorf("again it is %s", n.Status)
	}
}

// A seal ends some time after its notification.
func TestASealEnds(t *testing.T) {
	b := setup(t)
	d, s := b.process(), b.sender()
	short := func(r *Request) { r.SealFor = time.Minute }
	b.send(d, b.request("k", short), accepted)
	b.work(s)
	b.send(d, b.request("k", short), filtered)
	b.Exec(`update attempts set at = at - interval '1 minute'`)
	b.send(d, b.request("k", short), accepted)
}

// A request that has lost its lock while it read the audience stores nothing under it.
func TestALostLockStoresNothing(t *testing.T) {
	b := setup(t)
	slow, quick := b.process(), b.process()
	slow.Hook = func(_ context.Context, at string) {
		if at == "locked" {
			b.Exec(`update direct_keys set locked_until = now()`)
			b.send(quick, b.ofProfile("k"), accepted)
		}
	}
	b.send(slow, b.ofProfile("k"), filtered)
	b.WantCount(1, `select count(*) from notifications`)
	slow.Hook = func(_ context.Context, at string) {
		if at == "locked" {
			b.Exec(`update direct_keys set locked_until = now()`)
		}
	}
	b.send(slow, b.ofProfile("late"), accepted) // no other request has acquired it: it is acquired again
	b.WantCount(1, `select count(*) from direct_keys where stored and locked_until > now()`)
	b.WantCount(2, `select count(*) from notifications`)
}

// The lock of a request whose process has crashed expires.
func TestALockExpires(t *testing.T) {
	b := setup(t)
	crashing, d := b.process(), b.process()
	crashing.Hook = func(_ context.Context, at string) {
		if at == "locked" {
			panic(errCrash{})
		}
	}
	if got := deliver(b, crashing, b.ofProfile("k")); got != "crashed" {
		t.Fatal(got)
	}
	b.send(d, b.ofProfile("k"), locked)
	b.Exec(`update direct_keys set locked_until = now()`)
	b.send(d, b.ofProfile("k"), accepted)
}

// A request whose recipient cannot be read unlocks its key at once.
func TestUnlock(t *testing.T) {
	b := setup(t)
	d := b.process()
	b.ExecDB(`alter table customers rename to gone`)
	if s, err := d.Send(context.Background(), b.Workspace, b.ofProfile("k")); err == nil {
		t.Fatal(s)
	}
	b.ExecDB(`alter table gone rename to customers`)
	b.send(d, b.ofProfile("k"), accepted)
}

// A request that has lost its lock does not unlock the key of the one that has it.
func TestUnlockAfterALostLock(t *testing.T) {
	b := setup(t)
	ctx := context.Background()
	lock := func() *request {
		r := newRequest(b.Workspace, b.request("k"), times{time.Minute, time.Hour, AtMostOnce}, false)
		b.Must(pgx.BeginFunc(ctx, b.Pool, func(tx pgx.Tx) error {
			got, err := Lock(ctx, tx, b.Workspace, []*request{r}, false)
			if len(got) != 1 {
				t.Fatal("the key is not acquired")
			}
			return err
		}))
		return r
	}
	late := lock()
	b.Exec(`update direct_keys set locked_until = now()`)
	holder := lock()
	b.Must(Unlock(ctx, b.Pool, b.Workspace, []*request{late}))
	b.send(b.process(), b.request("k"), locked)
	b.Must(Unlock(ctx, b.Pool, b.Workspace, []*request{holder}))
	b.send(b.process(), b.request("k"), accepted)
}

// Two requests with one key at once: one is stored.
func TestOneOfTwoAtOnce(t *testing.T) {
	b := setup(t)
	tx, err := b.Pool.Begin(context.Background())
	b.Must(err)
	r := b.request("k")
	held := newRequest(b.Workspace, r, times{time.Minute, time.Hour, AtMostOnce}, false)
	if got, err := Lock(context.Background(), tx, b.Workspace, []*request{held}, true); len(got) != 1 || err != nil {
		t.Fatal(got, err)
	}
	answer := make(chan string, 1)
	go func() {
		s, err := b.process().Send(context.Background(), b.Workspace, b.request("k"))
		answer <- answerOf(s, err)
	}()
	pgtest.WaitForLocks(t, b.Pool, 1)
	b.Must(tx.Commit(context.Background()))
	if got := <-answer; got != locked { // its notification is not visible, since this test stores none
		t.Errorf("the other is %s", got)
	}
}

// A key that a crashed process has locked by a clock that was set back since is free. A lock
// that may be right lasts.
func TestALockThatIsTooFarAheadIsFree(t *testing.T) {
	b := setup(t)
	d := b.process()
	b.send(d, b.request("k"), accepted)
	for _, c := range []struct{ ahead, want string }{{"1 hour", locked}, {"1 day", accepted}} {
		b.Exec(`update direct_keys set stored = false, locked_until = now() + $1::interval`, c.ahead)
		b.send(d, b.request("k"), c.want)
	}
	b.WantCount(1, `select count(*) from direct_keys where stored and locked_until < now() + interval '1 hour 1 minute'`)
}

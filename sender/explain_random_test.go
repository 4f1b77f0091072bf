package sender

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/events"
	"lemma/notifications"
)

// randomCarrier answers calls at random, and counts its answers.
type randomCarrier struct {
	mu                sync.Mutex
	rand              *rand.Rand
	accepted, unknown int
}

func (c *randomCarrier) Send(_ context.Context, messages []Message) []Receipt {
	c.mu.Lock()
	defer c.mu.Unlock()
	receipts := make([]Receipt, len(messages))
	for i := range messages {
		o := []Outcome{Accepted, Unknown, Unknown, NotAccepted, Rejected}[c.rand.IntN(5)]
		switch o {
		case Accepted:
			c.accepted++
		case Unknown:
			c.unknown++
		}
		receipts[i] = Receipt{Outcome: o, Code: 250, Reason: "random"}
	}
	return receipts
}

func (c *randomCarrier) Close() {}

func (c *randomCarrier) answers() (accepted, unknown int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.accepted, c.unknown
}

// randomRun takes one notification through random workers, some of which are paused at
// a point and continue later, reapers, pauses and a cancellation.
type randomRun struct {
	*bundle
	seed    uint64
	rand    *rand.Rand
	carrier *randomCarrier
	most    int // deliveries that explain has called possible
	paused  []func()
	steps   []string
}

func (r *randomRun) step() string {
	switch x := r.rand.IntN(20); {
	case x < 8:
		return r.work()
	case x < 12 && len(r.paused) > 0:
		i := r.rand.IntN(len(r.paused))
		r.paused[i]()
		r.paused = slices.Delete(r.paused, i, i+1)
		return "a worker continues"
	case x < 17:
		r.reap(r.sender())
		return "the reaper runs"
	case x == 17 && r.rand.IntN(3) == 0:
		r.within(func(tx pgx.Tx) error { _, err := r.ledger.Cancel(bg, tx, r.Workspace, r.origin); return err })
		return "cancelled"
	case x == 18:
		r.within(func(tx pgx.Tx) error { return r.ledger.Hold(bg, tx, r.Workspace, r.origin) })
		return "held"
	}
	r.within(func(tx pgx.Tx) error { return r.ledger.Unhold(bg, tx, r.Workspace, r.origin) })
	return "opened"
}

func (r *randomRun) within(change func(pgx.Tx) error) {
	r.T.Helper()
	if err := pgx.BeginFunc(bg, r.Pool, change); err != nil {
		r.T.Fatal(err)
	}
}

// work starts a worker, and returns when it is paused or has ended.
func (r *randomRun) work() string {
	ready := r.batches(fmt.Sprintf("origin_id = '%s' and status = 'ready'", r.origin))
	if len(ready) == 0 {
		return "no batch is ready"
	}
	r.makeDue()
	s := r.senderOf(Kind{Name: "scripted", Open: func(Account) (Carrier, error) { return r.carrier, nil }},
		func(c *Config) { c.CircuitAfter = 10000 })
	point, nth := []string{"claimed", "committing", "opened", "called", "finished"}[r.rand.IntN(5)], 1
	if point == "committing" {
		nth += r.rand.IntN(2)
	}
	reached, release := pauseAt(s, point, nth)
	done := make(chan error, 1)
	go func() { _, err := s.Work(bg, ready[0]); done <- err }()
	select {
	case <-reached:
		r.paused = append(r.paused, func() { close(release); <-done })
		return fmt.Sprint("a worker is paused at ", point, nth)
	case <-done:
		return "a worker ends"
	}
}

// check compares explain with the answers of the carrier.
func (r *randomRun) check(step string) {
	r.T.Helper()
	r.steps = append(r.steps, step)
	e := r.explain()
	accepted, unknown := r.carrier.answers()
	r.most = min(r.most, e.DeliveriesPossible)
	if e.DeliveriesAtLeast > accepted || e.DeliveriesAtMost < accepted+unknown || accepted+unknown > r.most {
		r.T.Errorf("seed %d: %d accepted, %d unknown; %d to %d deliveries, %d possible: %s; after: %s", r.seed, accepted, unknown,
			e.DeliveriesAtLeast, e.DeliveriesAtMost, r.most, e.Summary, strings.Join(r.steps, ", "))
	}
}

// At each step of random histories, explain gives bounds that hold then and later.
func TestExplainOfRandomHistories(t *testing.T) {
	b := setup(t)
	for seed := uint64(205); seed < 217; seed++ { // 214 pauses a worker until another has its batch
		b.origin = lemma.NewID()
		b.Exec(`insert into contents (workspace_id, id, channel, template_id, template_version, from_name, from_email, reply_to, headers)
			values ($1, $2, 'email', $3, 1, 'Shop', 'news@shop.example', '', '{}')`, b.Workspace, b.origin, b.provider)
		r := &randomRun{bundle: b, seed: seed, most: 2, rand: rand.New(rand.NewPCG(seed, 5)),
			carrier: &randomCarrier{rand: rand.New(rand.NewPCG(seed, 6))}}
		b.insert(1, 1, 1+min(r.rand.IntN(3), 1))
		for range 14 {
			r.check(r.step())
		}
		for _, resume := range r.paused {
			resume()
			r.check("a worker continues")
		}
		b.reap(b.sender())
		r.check("the end")
		if status := r.explain().Notification.Status; status != "pending" && status != "processing" {
			b.Exec(`delete from provider_events where origin_id = $1`, b.origin)
			b.Exec(`delete from batch_log`)
			r.check("retention has dropped events and windows")
			if e := r.explain(); status == "sent" && e.DeliveriesAtLeast == 0 {
				t.Errorf("seed %d: sent, and not delivered: %s", seed, strings.Join(r.steps, ", "))
			}
		}
	}
}

// What a late event has proven about an orphaned notification holds after its retention.
func TestExplainOfAResolvedNotificationWithoutItsEvents(t *testing.T) {
	b := setup(t)
	b.insert(1, 1, 1)
	b.carrier.then[addressOf(0)] = []Outcome{Unknown}
	s := b.sender()
	b.work(s)
	b.reap(s)
	b.report(0, 1, events.TypeDelivered, time.Now())
	b.inTx(func(tx pgx.Tx) error {
		row := notifications.Row{OriginID: b.origin, BatchID: b.batches("attempt = 1")[0].BatchID}
		_, err := notifications.ResolveByEvidence(bg, tx, b.Workspace, []notifications.Row{row})
		return err
	})
	b.Exec(`delete from provider_events`)
	if e := b.explain(); e.DeliveriesAtLeast != 1 || e.DeliveriesAtMost != 1 {
		t.Errorf("%d to %d deliveries: %s", e.DeliveriesAtLeast, e.DeliveriesAtMost, e.Summary)
	}
}

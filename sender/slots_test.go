package sender

import (
	"container/heap"
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma/notifications"
	"lemma/pgtest"
)

// tenant is another workspace with a provider, on the same database and senders.
func (b *bundle) tenant() *bundle {
	b.T.Helper()
	return newTenant(pgtest.ShopIn(b.T, b.Pool))
}

// providers of two tenants behind one kind: each has its own carrier.
type separate map[uuid.UUID]Carrier

func (s separate) kind() Kind {
	return Kind{Name: "scripted", Open: func(a Account) (Carrier, error) { return s[a.ProviderID], nil }}
}

// blocking accepts a message when the test allows it, or else when the call ends.
type blocking struct {
	free  chan struct{}
	calls chan struct{} // gets one for each that began
}

func (c *blocking) Send(ctx context.Context, messages []Message) []Receipt {
	out := make([]Receipt, len(messages))
	for i, m := range messages {
		if ctx.Err() != nil || !time.Now().Before(m.StartBy) {
			out[i] = Receipt{Outcome: NotCalled}
			continue
		}
		select {
		case c.calls <- struct{}{}:
		default:
		}
		select {
		case <-c.free:
			out[i] = Receipt{Outcome: Accepted, At: time.Now()}
		case <-ctx.Done():
			out[i] = Receipt{Outcome: Unknown}
		}
	}
	return out
}

func (c *blocking) Close() {}

// jobQueue is a small River: n workers take jobs in the order in which they are due,
// and snooze those that return a time.
type jobQueue struct {
	mu       sync.Mutex
	queue    []queued
	enqueued chan struct{} // closed by the next enqueue
}

type queued struct {
	at  time.Time
	n   int // the number, which decides between equal times
	ref notifications.Ref
}

func (q *jobQueue) Len() int { return len(q.queue) }
func (q *jobQueue) Less(i, j int) bool {
	a, b := q.queue[i], q.queue[j]
	return a.at.Before(b.at) || a.at.Equal(b.at) && a.n < b.n
}
func (q *jobQueue) Swap(i, j int) { q.queue[i], q.queue[j] = q.queue[j], q.queue[i] }
func (q *jobQueue) Push(x any)    { q.queue = append(q.queue, x.(queued)) }
func (q *jobQueue) Pop() any {
	last := q.queue[len(q.queue)-1]
	q.queue = q.queue[:len(q.queue)-1]
	return last
}

// next waits for a job that is due; false: ctx has ended.
func (q *jobQueue) next(ctx context.Context) (queued, bool) {
	for ctx.Err() == nil {
		r, due, enqueued := q.first()
		if due == 0 {
			return r, true
		}
		select {
		case <-enqueued:
		case <-time.After(due):
		case <-ctx.Done():
		}
	}
	return queued{}, false
}

// first takes the first job if it is due, and returns otherwise how long that takes.
func (q *jobQueue) first() (r queued, due time.Duration, enqueued <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.enqueued == nil {
		q.enqueued = make(chan struct{})
	}
	if len(q.queue) == 0 {
		return queued{}, time.Hour, q.enqueued
	}
	if due := time.Until(q.queue[0].at); due > 0 {
		return queued{}, due, q.enqueued
	}
	return heap.Pop(q).(queued), 0, nil
}

func (q *jobQueue) enqueue(r queued) {
	q.mu.Lock()
	defer q.mu.Unlock()
	heap.Push(q, r)
	if q.enqueued != nil {
		close(q.enqueued)
		q.enqueued = nil
	}
}

// serve works jobs with n workers until the test ends.
func (q *jobQueue) serve(ctx context.Context, t *testing.T, s *Sender, n int) (wait func()) {
	var workers sync.WaitGroup
	for range n {
		workers.Go(func() {
			for r, ok := q.next(ctx); ok; r, ok = q.next(ctx) {
				again, err := s.Work(ctx, r.ref)
				if err != nil && ctx.Err() == nil {
					t.Error(err)
				}
				if again > 0 {
					q.enqueue(queued{at: time.Now().Add(again), ref: r.ref})
				}
			}
		})
	}
	return workers.Wait
}

// A provider that does not answer holds some of a process's slots. Another tenant's mail
// is sent meanwhile, although its jobs were enqueued after hundreds of the first's.
func TestSlowTenantLeavesSlotsToOthers(t *testing.T) {
	a := setup(t)
	b, c := a.tenant(), a.tenant()
	hanging := &blocking{free: make(chan struct{}), calls: make(chan struct{}, 1)}
	carriers := separate{a.provider: hanging, c.provider: hanging,
		b.provider: &scripted{calls: map[string]int{}, then: map[string][]Outcome{}, sent: map[string][]Message{}}}
	s := a.senderOf(carriers.kind(), func(cfg *Config) { cfg.CallTimeout = 30 * time.Second; cfg.Lease = 5 * time.Minute })
	q := &jobQueue{}
	for i, tenant := range []*bundle{a, c, b} {
		for j, ref := range tenant.insert([]int{100, 100, 40}[i], 1, 2) {
			q.enqueue(queued{n: 1000*i + j, ref: ref})
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	wait := q.serve(ctx, t, s, s.cfg.Workers)
	<-hanging.calls
	pgtest.Eventually(t, 20*time.Second, "the quick tenant's mail is out", func() bool { return b.counts().Sent == 40 })
	for name, slow := range map[string]*bundle{"a": a, "c": c} {
		if got := slow.counts(); got.Sent != 0 || got.Processing == 0 {
			t.Errorf("the slow tenant %s: %+v", name, got)
		}
		pgtest.Eventually(t, 20*time.Second, "explain reports that mail of the slow tenant "+name+" waits for a slot", func() bool {
			h := slow.health()
			return h.ThrottledAt != nil && h.ThrottledBy != ""
		})
		waits := false
		for i := range 100 {
			e, err := slow.ledger.Explain(ctx, slow.Workspace, slow.origin, keyOf(i))
			if err != nil {
				t.Fatal(err)
			}
			if waits = e.Waiting != nil && e.Waiting.For == "sender_slot"; waits {
				break
			}
		}
		if !waits {
			t.Errorf("explain does not report that mail of the slow tenant %s waits for a slot", name)
		}
	}
	close(hanging.free)
	pgtest.Eventually(t, 60*time.Second, "the slow tenants' mail is out as well",
		func() bool { return a.counts().Sent == 100 && c.counts().Sent == 100 })
	stop()
	wait()
}

// What each limit leaves, when nothing is known, and when everything is.
func TestSlots(t *testing.T) {
	p := func(n byte) uuid.UUID { return uuid.UUID{15: n} }
	for _, c := range []struct {
		name     string
		took     time.Duration // of each provider's last window; 0: unknown
		requests []byte        // workspace and provider, in pairs
		want     int
		limit    string
		thenLast int // requests of one unknown provider of another workspace that succeed after that
	}{
		{"one quick provider", 50 * time.Millisecond, repeat(20, 1, 1), 12, limitProvider, 4},
		{"one slow provider", 2 * time.Second, repeat(20, 1, 1), 4, limitProvider, 4},
		{"one that is unknown", 0, repeat(20, 1, 1), 4, limitProvider, 4},
		{"quick ones of a workspace", 50 * time.Millisecond, append(repeat(7, 1, 1), repeat(7, 1, 2)...), 12, limitWorkspace, 4},
		{"slow ones of a workspace", 2 * time.Second,
			append(append(repeat(4, 1, 1), repeat(4, 1, 2)...), repeat(4, 1, 3)...), 6, limitWorkspace, 4},
		{"unknown ones of a workspace", 0, append(append(repeat(4, 1, 1), repeat(4, 1, 2)...), repeat(4, 1, 3)...), 9, limitWorkspace, 3},
		{"many slow ones", 2 * time.Second, append(append(repeat(4, 1, 1), repeat(4, 2, 2)...), repeat(4, 3, 3)...), 8, limitSlow, 4},
		{"many that are unknown", 0,
			append(append(append(repeat(4, 1, 1), repeat(4, 2, 2)...), repeat(4, 3, 3)...), repeat(4, 4, 4)...), 12, limitSlow, 0},
	} {
		s := &Sender{cfg: Config{}.withDefaults(), metrics: NewMetrics(nil), cache: newCaches()}
		s.slots.limit(s.cfg.Workers, s.cfg.PerProvider, s.cfg.PerWorkspace)
		got, last := 0, ""
		for i := 0; i < len(c.requests); i += 2 {
			s.paceOf(p(c.requests[i+1])).took.Store(int64(c.took))
			if held, limit, _ := s.tryAcquire(&s.slots, p(c.requests[i]), p(c.requests[i+1]), false); held != nil {
				got++
			} else {
				last = limit
			}
		}
		if got != c.want || last != c.limit {
			t.Errorf("%s: %d slots, then %q; want %d, then %q", c.name, got, last, c.want, c.limit)
		}
		more := 0
		for range 10 {
			if held, _, _ := s.tryAcquire(&s.slots, p(100), p(101), false); held != nil {
				more++
			}
		}
		if more != c.thenLast || len(s.slots.held) > s.cfg.Workers {
			t.Errorf("%s: then another got %d slots of %d, want %d", c.name, more, len(s.slots.held), c.thenLast)
		}
	}
}

// However many slow providers a workspace has, a slow one of another workspace has a slot.
func TestSlowProvidersOfAWorkspaceLeaveASlot(t *testing.T) {
	p := func(n byte) uuid.UUID { return uuid.UUID{15: n} }
	s := &Sender{cfg: Config{}.withDefaults(), metrics: NewMetrics(nil), cache: newCaches()}
	s.direct.limit(s.cfg.DirectWorkers, threeQuarters(s.cfg.DirectWorkers), threeQuarters(s.cfg.DirectWorkers))
	for n := range byte(20) {
		s.paceOf(p(n)).took.Store(int64(2 * time.Second))
		for range 4 {
			s.tryAcquire(&s.direct, p(100), p(n), false)
		}
	}
	s.paceOf(p(50)).took.Store(int64(2 * time.Second))
	if held, limit, _ := s.tryAcquire(&s.direct, p(101), p(50), false); held == nil {
		t.Errorf("another workspace has no slot: %s, %d are held", limit, len(s.direct.held))
	}
}

func repeat(n int, workspace, provider byte) (pairs []byte) {
	for range n {
		pairs = append(pairs, workspace, provider)
	}
	return pairs
}

// A workspace that enqueued a thousand jobs first is not served a thousand times
// first: with one worker, the other's only batch is among the first.
func TestWorkspacesAreServedFairly(t *testing.T) {
	a := setup(t)
	b := a.tenant()
	s := a.sender(func(c *Config) { c.Workers = 1 })
	refs := a.insert(200, 2, 2)
	b.insert(1, 1, 2)
	served := 0
	for _, ref := range refs {
		if _, err := s.Work(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
		if served++; b.counts().Sent == 1 {
			break
		}
	}
	if served > 30 {
		t.Errorf("the other workspace was served after %d jobs", served)
	}
	for range 2 { // jobs that gave way are enqueued again
		for _, ref := range refs {
			if _, err := s.Work(t.Context(), ref); err != nil {
				t.Fatal(err)
			}
		}
	}
	a.wantCounts(notifications.Counts{Sent: 200})
}

// A batch that another's job worked and gave back has a job again, since its own may
// have run meanwhile.
func TestServingAnotherLeavesAJob(t *testing.T) {
	a := setup(t)
	b := a.tenant()
	s := a.sender()
	own := a.insert(1, 1, 2)[0]
	other := b.insert(1, 1, 2)[0]
	a.carrier.then[addressOf(0)] = []Outcome{NotAccepted, NotAccepted}
	a.Exec(`truncate river_job`)
	for !s.serveAnother(t.Context(), own) {
		s.fairness.at = time.Time{}
	}
	var enqueued int
	err := a.Pool.QueryRow(t.Context(), `select count(*) from river_job where (args->>'batch_id')::uuid = $1`,
		other.BatchID).Scan(&enqueued)
	if err != nil || enqueued != 1 {
		t.Errorf("%d jobs, %v", enqueued, err)
	}
	if due := b.batches("status = 'ready' and due_at > now()"); len(due) != 1 {
		t.Error("it was not worked")
	}
}

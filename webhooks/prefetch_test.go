package webhooks

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/pgtest"
)

// counted returns Webhooks whose statements are counted.
func (b bundle) counted() (w *Webhooks, count *statements) {
	b.T.Helper()
	cfg, count := b.Pool.Config(), &statements{}
	cfg.ConnConfig.Tracer = count
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	b.Must(err)
	b.T.Cleanup(pool.Close)
	return b.another(pool, b.options), count
}

// statements counts the statements that are sent to Postgres.
type statements struct{ n atomic.Int64 }

func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	s.n.Add(1)
	return ctx
}

func (s *statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// loop runs a process until the condition holds, and returns when its calls are settled.
func (b bundle) loop(w *Webhooks, until func() bool) {
	b.T.Helper()
	ctx, cancel := context.WithCancel(b.T.Context())
	var process sync.WaitGroup
	process.Go(func() { w.Loop(ctx) })
	defer process.Wait()
	defer cancel()
	b.Eventually("the process has done what the test waits for", until)
}

// backlog writes n messages to an endpoint.
func (b bundle) backlog(n int) Endpoint {
	b.T.Helper()
	e, _ := b.endpoint("/backlog")
	all := make([]Message, n)
	for i := range all {
		all[i] = b.message(e)
	}
	b.write(all...)
	return e
}

// A backlog for an endpoint that answers at once is claimed and settled in chunks,
// within the limit of concurrent calls.
func TestABacklogIsClaimedAndSettledTogether(t *testing.T) {
	t.Parallel()
	b := setup(t, func(o *Options) { o.PerEndpoint = 4 })
	const n = 2000
	b.backlog(n)
	var now, most atomic.Int64
	b.receiver.answers(func(http.ResponseWriter, *http.Request) {
		defer now.Add(-1)
		for at := now.Add(1); at > most.Load(); {
			most.Store(at)
		}
	})
	w, sent := b.counted()
	b.loop(w, func() bool { return b.Count(`select count(*) from outbox where status = 'pending'`) == 0 })
	if most.Load() > 4 {
		t.Errorf("%d calls at a time", most.Load())
	}
	if got := sent.n.Load(); got > n {
		t.Errorf("%d statements for %d messages", got, n)
	}
	ids := map[uuid.UUID]bool{}
	for _, o := range b.settled.list() {
		ids[o.ID] = o.Attempts == 1
	}
	if len(ids) != n || len(b.settled.list()) != n || len(b.receiver.all()) != n {
		t.Errorf("%d messages settled %d times after %d calls", len(ids), len(b.settled.list()), len(b.receiver.all()))
	}
	if w.buffers.of[uuid.Nil] != nil || len(w.buffers.of) != 0 || w.buffers.bytes != 0 || w.limiter.all != 0 {
		t.Errorf("%d buffers, %d bytes and %d calls are still in use", len(w.buffers.of), w.buffers.bytes, w.limiter.all)
	}
}

// Messages that were claimed in advance and are not called are due again at once, as
// if they had not been claimed.
func TestUncalledMessagesAreGivenBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		timeout time.Duration
		end     func(stop func(), q *http.Request) // of the calls from the 50th on
	}{
		"the process stops":            {5 * time.Second, func(stop func(), _ *http.Request) { stop() }},
		"the endpoint stops to answer": {200 * time.Millisecond, func(_ func(), q *http.Request) { <-q.Context().Done() }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, func(o *Options) {
				o.PerEndpoint, o.Timeout, o.BackOff, o.Poll = 2, c.timeout, []time.Duration{time.Hour}, time.Hour
			})
			const n = 400
			b.backlog(n)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			var calls atomic.Int64
			b.receiver.answers(func(_ http.ResponseWriter, q *http.Request) {
				if calls.Add(1) >= 50 {
					c.end(stop, q)
				}
			})
			var process sync.WaitGroup
			process.Go(func() { b.Loop(ctx) })
			defer process.Wait()
			defer stop()
			b.Eventually("an unresponsive endpoint has one call", func() bool {
				leased := b.Count(`select count(*) from outbox where leased_by is not null`)
				return calls.Load() >= 50 && leased <= 1
			})
			called := int(calls.Load())
			got := b.Count(`select count(*) from outbox where status = 'pending' and attempts = 0
				and leased_by is null and due_at <= now()`)
			if got < n-called-1 {
				t.Errorf("%d of %d messages are due and uncalled after %d calls", got, n, called)
			}
		})
	}
}

// A message whose lease would expire during its call is given back, and one that waits for so long that its endpoint may
// have been disabled.
func TestMessagesThatWaitForLongAreNotCalled(t *testing.T) {
	t.Parallel()
	for _, age := range []func(Options) time.Duration{
		func(o Options) time.Duration { return o.Lease - o.Timeout }, func(Options) time.Duration { return claimedFor },
	} {
		b := setup(t, nil)
		b.backlog(3)
		taken, err := b.claimMore(t.Context(), b.Workspace, b.backlogOf(), 3, maxPrefetchBytes)
		b.Must(err)
		l := b.buffers.acquire(taken[0].EndpointID)
		taken[1].since = taken[1].since.Add(-age(b.options))
		l.waiting = taken[1:]
		if m, ok := b.next(t.Context(), taken[0], l, time.Now().Add(time.Minute)); ok {
			t.Errorf("message %s is called", m.ID)
		}
		b.WantCount(2, `select count(*) from outbox where leased_by is null and attempts = 0`)
	}
}

// A message whose lease has nearly expired before its call may begin is given back.
func TestAMessageThatWaitedForSettlementsIsNotCalled(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.backlog(1)
	taken, err := b.claim(t.Context())
	b.Must(err)
	taken[0].since = taken[0].since.Add(-b.options.Lease + b.options.Timeout)
	b.serve(t.Context(), &sync.WaitGroup{}, taken[0], b.buffers.acquire(taken[0].EndpointID))
	if n := len(b.receiver.all()); n > 0 {
		t.Errorf("%d calls", n)
	}
	b.WantCount(1, `select count(*) from outbox where leased_by is null and attempts = 0`)
	if b.limiter.all != 0 || b.buffers.bytes != 0 {
		t.Errorf("%d calls and %d bytes are in use", b.limiter.all, b.buffers.bytes)
	}
}

func (b bundle) backlogOf() uuid.UUID {
	b.T.Helper()
	return pgtest.One[uuid.UUID](b.T, b.Pool, `select endpoint_id from outbox limit 1`)
}

// One message whose effects fail does not prevent the settlement of the others in
// its chunk.
func TestOneFailingEffect(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.backlog(20)
	taken, err := b.claimMore(t.Context(), b.Workspace, b.backlogOf(), 20, maxPrefetchBytes)
	b.Must(err)
	bad := taken[7].ID
	b.OnSettled(func(_ context.Context, _ pgx.Tx, all []Outcome) error {
		for _, o := range all {
			if o.ID == bad {
				return errors.New("the enrollment is locked")
			}
		}
		return nil
	})
	b.settler.writers = settlers // no settlement starts before all messages wait
	failed := 0
	for _, m := range taken {
		b.settleSoon(m, result{status: 200, final: true}, func(one *settlement) {
			if one.err != nil {
				failed++
			} else if !one.held || !one.ended {
				t.Errorf("message %s is held %t, ended %t", m.ID, one.held, one.ended)
			}
		})
	}
	b.settleWaiting()
	if n := b.Count(`select count(*) from outbox where status = 'delivered'`); n != 19 || failed != 1 {
		t.Errorf("%d were delivered, and %d were not settled", n, failed)
	}
}

// Two workers that end their stay at once each expect the other to continue. Their
// claimed messages are given back.
func TestWorkersThatLeaveTogetherLeaveNothingClaimed(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.backlog(4)
	taken, err := b.claimMore(t.Context(), b.Workspace, b.backlogOf(), 4, maxPrefetchBytes)
	b.Must(err)
	endpoint := taken[0].EndpointID
	l := b.buffers.acquire(endpoint)
	b.buffers.acquire(endpoint)
	l.waiting = taken[2:]
	for i := range 2 {
		if _, more := b.next(t.Context(), taken[i], l, time.Now().Add(-time.Millisecond)); more {
			t.Fatal("a worker stays: the test needs two that leave")
		}
	}
	for range 2 {
		b.releaseBuffer(t.Context(), endpoint, l)
	}
	b.WantCount(2, `select count(*) from outbox where leased_by is null and attempts = 0 and due_at <= now()`)
}

package webhooks

import (
	"context"
	"sync"
	"testing"

	"github.com/google/uuid"

	"lemma/eventsout"
)

// large writes n messages of some bytes to an endpoint.
func (b bundle) large(n, bytes int) uuid.UUID {
	b.T.Helper()
	e, _ := b.endpoint("/")
	b.Exec(`insert into outbox (workspace_id, id, endpoint_id, body)
		select $1, gen_random_uuid(), $2, '"' || repeat('x', $4 - 2) || '"' from generate_series(1, $3::int)`, b.Workspace, e.ID, n, bytes)
	return e.ID
}

// A claim in advance takes messages up to a number of bytes. The others stay due.
func TestClaimsInAdvanceAreBoundedInBytes(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	endpoint := b.large(10, 100_000)
	for _, c := range []struct{ bytes, want int }{{99_999, 0}, {350_000, 3}, {100_000, 1}, {1 << 20, 6}} {
		taken, err := b.claimMore(t.Context(), b.Workspace, endpoint, 256, c.bytes)
		b.Must(err)
		if len(taken) != c.want {
			t.Errorf("%d messages of 100,000 bytes are claimed within %d bytes, want %d", len(taken), c.bytes, c.want)
		}
	}
	b.WantCount(10, `select count(*) from outbox where leased_by is not null and attempts = 1`)
}

// The body of an event counts for its messages, though they do not contain it.
func TestClaimsInAdvanceCountBodiesOfEvents(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	e := b.subscriber("/", types(eventsout.NotificationSent))
	for range 4 {
		b.record(b.sent(900))
	}
	b.publish(4)
	bytes := 0
	for _, body := range b.bodies(e) {
		bytes += len(body)
	}
	taken, err := b.claimMore(t.Context(), b.Workspace, e.ID, 256, bytes*5/8) // their times have more or fewer digits
	b.Must(err)
	if len(taken) != 2 || len(taken[0].event) < 900 {
		t.Errorf("%d of 4 messages are claimed within five eighths of their bytes", len(taken))
	}
}

// Messages of many endpoints that wait in a process have a number of bytes together, and
// those of one workspace half of them.
func TestBuffersOfAProcessAreBoundedInBytes(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	s := &b.buffers
	all, held := map[uuid.UUID]*buffer{}, map[uuid.UUID]int{}
	for _, of := range []bundle{b, b.tenant(), b.tenant(), b.tenant()} {
		for range 12 {
			endpoint := of.large(6, MaxBody)
			all[endpoint] = s.acquire(endpoint)
			s.mu.Lock()
			filled := b.prefetch(t.Context(), claimed{WorkspaceID: of.Workspace, EndpointID: endpoint}, all[endpoint])
			s.mu.Unlock()
			if filled != nil {
				<-filled
			}
			for _, m := range all[endpoint].waiting {
				held[of.Workspace] += len(m.Body)
			}
		}
	}
	sum := 0
	for ws, bytes := range held {
		sum += bytes
		if bytes > maxOfWorkspace || bytes < 1<<20 || s.ofWorkspace[ws] != bytes {
			t.Errorf("%d bytes of a workspace wait, and %d are counted", bytes, s.ofWorkspace[ws])
		}
	}
	if sum > maxBuffered || sum < maxBuffered/2 || s.bytes != sum {
		t.Errorf("%d bytes wait, and %d are counted", sum, s.bytes)
	}
	for endpoint, l := range all {
		b.releaseBuffer(t.Context(), endpoint, l)
	}
	if s.bytes != 0 || len(s.ofWorkspace) != 0 {
		t.Errorf("%d bytes of %d workspaces are counted after all were given back", s.bytes, len(s.ofWorkspace))
	}
	b.WantCount(0, `select count(*) from outbox where leased_by is not null`)
}

// The body of a message that is called counts, also of one that was not claimed in advance.
func TestBodiesOfCallsCount(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.large(1, 500_000)
	counted := make(chan int, 1)
	b.hook = func(at string) {
		if at == "claimed" {
			b.buffers.mu.Lock()
			defer b.buffers.mu.Unlock()
			counted <- b.buffers.ofWorkspace[b.Workspace]
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	var process sync.WaitGroup
	process.Go(func() { b.Loop(ctx) })
	defer process.Wait()
	defer stop()
	if n := <-counted; n != 500_000 {
		t.Errorf("%d bytes are counted during a call of 500,000", n)
	}
}

// A call that waits for its settlement has no body, and no bytes are counted for it.
func TestBodiesAreForgottenAfterTheCall(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.large(20, 10_000)
	b.settler.writers = settlers // no settlement starts before all messages wait
	var ended sync.WaitGroup
	ended.Add(20)
	b.hook = func(stage string) {
		if stage == "waits for settlement" {
			ended.Done()
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	var process sync.WaitGroup
	process.Go(func() { b.Loop(ctx) })
	defer process.Wait()
	defer stop()
	ended.Wait()
	b.settler.mu.Lock()
	for _, one := range b.settler.waiting {
		if one.Body != nil || one.event != nil {
			t.Errorf("a call that has ended keeps %d bytes", len(one.Body)+len(one.event))
		}
	}
	b.settler.mu.Unlock()
	b.buffers.mu.Lock()
	if n := b.buffers.bytes; n != 0 {
		t.Errorf("%d bytes are counted after all calls", n)
	}
	b.buffers.mu.Unlock()
	b.settleWaiting()
	b.WantCount(20, `select count(*) from outbox where status = 'delivered'`)
}

package webhooks

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/eventsout"
)

// reserved publishes n events to an endpoint that has answered before, for a reservation.
func (b bundle) reserved(e Endpoint, n int) *reservation {
	b.T.Helper()
	b.buffers.means = map[uuid.UUID]time.Duration{e.ID: time.Millisecond}
	for range n {
		b.record(eventsout.Event{WorkspaceID: b.Workspace, Type: eventsout.CampaignStarted, OriginID: lemma.NewID()})
	}
	r := b.newReservation()
	done, err := b.publishChunk(b.T.Context(), r)
	b.Must(err)
	if done.written != n {
		b.T.Fatalf("%d messages were written, want %d", done.written, n)
	}
	return r
}

// The transaction that publishes messages leases those that its process can call, so that
// neither a claim nor another process takes them.
func TestPublishedMessagesAreLeased(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	e := b.subscriber("/", types(eventsout.CampaignStarted))
	r := b.reserved(e, 20)
	b.WantCount(20, `select count(*) from outbox where attempts = 1 and leased_by = $1 and due_at = lease_until
		and lease_until - created_at = $2::interval`, r.token, b.options.Lease)
	b.run(b.another(b.Pool, b.options), 0)
	var calls sync.WaitGroup
	b.startPublished(t.Context(), &calls, r, func() {})
	calls.Wait()
	b.WantCount(20, `select count(*) from outbox where status = 'delivered' and attempts = 1`)
	if n := len(b.receiver.all()); n != 20 || b.buffers.bytes != 0 || len(b.buffers.of) != 0 || b.limiter.all != 0 {
		t.Errorf("%d calls; %d bytes, %d buffers and %d calls are in use", n, b.buffers.bytes, len(b.buffers.of), b.limiter.all)
	}
}

// A process that stops before it calls published messages loses none: they are given back,
// or due when their lease expires.
func TestPublishedMessagesThatAreNotCalled(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end func(b bundle, r *reservation)
	}{
		"given back": {func(b bundle, r *reservation) { b.dropReservation(b.T.Context(), r) }},
		"killed":     {func(b bundle, _ *reservation) { b.due() }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, nil)
			c.end(b, b.reserved(b.subscriber("/", types(eventsout.CampaignStarted)), 5))
			other := b.another(b.Pool, b.options)
			b.run(other, 5)
			b.WantCount(5, `select count(*) from outbox where status = 'delivered'`)
		})
	}
}

// Messages wait for a claim if their endpoint does not answer or is disabled, or half of the
// calls of the process are in use: those that wait already come first.
func TestPublishedMessagesThatWaitForAClaim(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(b bundle, e Endpoint){
		"the endpoint does not answer": func(b bundle, e Endpoint) { b.limiter.recordAnswer(b.Workspace, e.ID, false) },
		"the endpoint is disabled": func(b bundle, e Endpoint) {
			b.Exec(`update webhook_endpoints set status = 'disabled', status_reason = 'x', disabled_at = now()`)
		},
		"the process is busy": func(b bundle, _ Endpoint) {
			for range b.options.Workers/2 + 1 {
				b.limiter.acquire(b.Workspace, lemma.NewID())
			}
		},
		"the process has no memory left": func(b bundle, _ Endpoint) { b.buffers.bytes = maxBuffered },
		"the workspace has no memory left": func(b bundle, _ Endpoint) {
			b.buffers.ofWorkspace = map[uuid.UUID]int{b.Workspace: maxOfWorkspace}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, nil)
			e := b.subscriber("/", types(eventsout.CampaignStarted))
			prepare(b, e)
			if r := b.reserved(e, 3); !r.left {
				t.Error("no claim follows")
			}
			b.WantCount(3, `select count(*) from outbox where leased_by is null and attempts = 0 and due_at <= now()`)
		})
	}
}

// Calls of one process to several endpoints of a host keep their connections.
func TestConcurrentCallsKeepTheirConnections(t *testing.T) {
	t.Parallel()
	b := setup(t, func(o *Options) { o.Workers, o.PerWorkspace = 32, 32 })
	var dialled atomic.Int64
	dial := b.client.Transport.(*http.Transport).DialContext
	b.client.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		dialled.Add(1)
		return dial(ctx, network, address)
	}
	for range 4 {
		e, _ := b.endpoint("/")
		for range 3 * b.options.PerEndpoint {
			b.write(b.message(e))
		}
	}
	all := make(chan struct{})
	var arrived atomic.Int64
	b.receiver.answers(func(http.ResponseWriter, *http.Request) {
		if arrived.Add(1) == int64(b.options.Workers) {
			close(all)
		}
		<-all
	})
	for range 3 {
		b.run(b.Webhooks, b.options.Workers)
	}
	if n := dialled.Load(); n != int64(b.options.Workers) {
		t.Errorf("%d connections for %d calls at a time", n, b.options.Workers)
	}
}

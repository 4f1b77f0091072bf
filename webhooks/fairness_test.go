package webhooks

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"lemma"
	"lemma/pgtest"
)

// Three endpoints that never answer, with more messages than there are workers, do
// not delay one that answers.
func TestUnresponsiveEndpointsDelayNoOther(t *testing.T) {
	t.Parallel()
	b := setup(t, func(o *Options) {
		o.Workers, o.PerWorkspace, o.PerEndpoint, o.Timeout = 4, 4, 2, 500*time.Millisecond
		o.BackOff = []time.Duration{time.Nanosecond}
	})
	b.receiver.answers(func(_ http.ResponseWriter, q *http.Request) {
		if strings.HasPrefix(q.URL.Path, "/dead") {
			<-q.Context().Done()
		}
	})
	var unresponsive []uuid.UUID
	for i := range 3 {
		e, _ := b.endpoint(fmt.Sprint("/dead", i))
		unresponsive = append(unresponsive, e.ID)
		for range 20 {
			b.write(b.message(e))
		}
	}
	most := 0 // calls to the unresponsive ones at a time
	b.hook = func(stage string) {
		if stage != "claimed" {
			return
		}
		b.limiter.mutex.Lock()
		defer b.limiter.mutex.Unlock()
		n := 0
		for _, id := range unresponsive {
			n += b.limiter.busy[id]
		}
		most = max(most, n)
	}
	b.loop(b.Webhooks, func() bool { // they are known as unresponsive
		b.limiter.mutex.Lock()
		defer b.limiter.mutex.Unlock()
		return len(b.limiter.unresponsive) == len(unresponsive)
	})
	most = 0 // no call runs, and no claim used the earlier state
	living, _ := b.endpoint("/living")
	for range 20 {
		b.write(b.message(living))
	}
	b.loop(b.Webhooks, func() bool { return b.Count(`select count(*) from outbox where status = 'delivered'`) == 20 })
	if most != 2 {
		t.Errorf("%d calls to unresponsive endpoints at a time, want half of the workers", most)
	}
	b.WantCount(0, `select count(*) from outbox where status <> 'pending' and endpoint_id <> $1`, living.ID)
}

// An endpoint with much older messages gets no more calls than another.
func TestEndpointsGetEqualCalls(t *testing.T) {
	t.Parallel()
	b := setup(t, func(o *Options) { o.Workers, o.PerWorkspace, o.PerEndpoint = 4, 4, 3 })
	first, _ := b.endpoint("/first")
	second, _ := b.endpoint("/second")
	for range 10 {
		b.write(b.message(first))
	}
	b.Exec(`update outbox set due_at = due_at - interval '1 hour'`)
	b.write(b.message(second), b.message(second))
	b.run(b.Webhooks, 4)
	paths := map[string]int{}
	for _, s := range b.receiver.all() {
		paths[s.path]++
	}
	if diff := cmp.Diff(map[string]int{"/first": 2, "/second": 2}, paths); diff != "" {
		t.Error(diff)
	}
	var more atomic.Int64
	var claimed sync.WaitGroup
	claimed.Add(3) // the limit of the endpoint: no call begins before all workers have claimed again
	b.hook = func(stage string) {
		if stage == "claimed" {
			taken, err := b.claim(t.Context())
			more.Add(int64(len(taken)))
			if err != nil {
				t.Error(err)
			}
			claimed.Done()
			claimed.Wait()
		}
	}
	b.run(b.Webhooks, 3)
	if more.Load() != 0 {
		t.Errorf("%d more were claimed", more.Load())
	}
}

// Two endpoints use all calls and have much older messages. The next call is for an
// endpoint with fewer calls.
func TestFreeCallsGoToEndpointsWithFewer(t *testing.T) {
	t.Parallel()
	b := setup(t, func(o *Options) { o.Workers, o.PerWorkspace, o.PerEndpoint = 4, 4, 2 })
	var slow Endpoint
	for i := range 2 {
		slow, _ = b.endpoint(fmt.Sprint("/slow", i))
		for range 10 {
			b.write(b.message(slow))
		}
	}
	b.Exec(`update outbox set due_at = due_at - interval '1 hour'`)
	taken, err := b.claim(t.Context())
	b.Must(err)
	if len(taken) != 4 {
		t.Fatalf("%d messages were claimed", len(taken))
	}
	quick, _ := b.endpoint("/quick")
	b.write(b.message(quick), b.message(quick))
	for _, want := range []struct {
		left, next uuid.UUID
	}{{slow.ID, quick.ID}, {quick.ID, quick.ID}} { // the other slow endpoint has two calls, and this one has one left
		b.limiter.release(b.Workspace, want.left)
		taken, err := b.claim(t.Context())
		b.Must(err)
		if len(taken) != 1 || taken[0].EndpointID != want.next {
			t.Errorf("%d messages were claimed, the first of %s", len(taken), taken[0].EndpointID)
		}
	}
}

// A workspace with many endpoints uses all calls and has much older messages. The
// next calls are for the workspace with fewer calls.
func TestFreeCallsGoToWorkspacesWithFewer(t *testing.T) {
	t.Parallel()
	b := setup(t, func(o *Options) { o.Workers, o.PerWorkspace, o.PerEndpoint = 4, 4, 2 })
	for i := range 40 {
		many, _ := b.endpoint(fmt.Sprint("/many", i))
		b.write(b.message(many), b.message(many))
	}
	b.Exec(`update outbox set due_at = due_at - interval '1 hour'`)
	taken, err := b.claim(t.Context())
	b.Must(err)
	if len(taken) != 4 {
		t.Fatalf("%d messages were claimed", len(taken))
	}
	other := b
	other.Workspace = pgtest.Workspace(t, b.Pool)
	for i := range 2 {
		few, _ := other.endpoint(fmt.Sprint("/few", i))
		other.write(other.message(few))
	}
	for _, left := range taken[:2] {
		b.limiter.release(left.WorkspaceID, left.EndpointID)
		next, err := b.claim(t.Context())
		b.Must(err)
		if len(next) != 1 || next[0].WorkspaceID != other.Workspace {
			t.Errorf("%d messages were claimed, the first of workspace %s", len(next), next[0].WorkspaceID)
		}
	}
}

// Endpoints of one workspace that answer slowly, with more messages than there are calls, leave
// calls to another workspace: by claims, and by messages that are called as soon as they are
// published.
func TestSlowEndpointsOfAWorkspaceLeaveCallsToOthers(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	b := setup(t, func(o *Options) { o.Workers, o.PerEndpoint = 4, 2 })
	b.metrics = NewMetrics(registry)
	until := make(chan struct{})
	answer := sync.OnceFunc(func() { close(until) })
	t.Cleanup(answer)
	var slow atomic.Int64
	b.receiver.answers(func(_ http.ResponseWriter, q *http.Request) {
		if strings.HasPrefix(q.URL.Path, "/slow") {
			slow.Add(1)
			<-until
		}
	})
	for i := range 3 {
		e, _ := b.endpoint(fmt.Sprint("/slow", i))
		b.write(b.message(e), b.message(e))
	}
	other := b
	other.Workspace = pgtest.Workspace(t, b.Pool)
	quick, _ := other.endpoint("/quick")
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); b.Loop(ctx) }()
	b.Eventually("the workspace waits for its share", func() bool { return slow.Load() >= 3 && deferred(t, registry) > 0 })
	for _, e := range []uuid.UUID{lemma.NewID(), lemma.NewID()} {
		if n := b.limiter.spare(b.Workspace, e); n != 0 || b.limiter.tryAcquire(b.Workspace, e) {
			t.Errorf("the workspace gets %d more calls", n)
		}
	}
	other.write(other.message(quick))
	b.Eventually("an endpoint of another workspace is called meanwhile", func() bool {
		return b.Count(`select count(*) from outbox where status = 'delivered' and endpoint_id = $1`, quick.ID) == 1
	})
	if n := slow.Load(); n != 3 {
		t.Errorf("%d calls of the workspace at a time, want 3", n)
	}
	answer()
	stop()
	<-ended
}

// deferred is how often a workspace was left out of a claim.
func deferred(t *testing.T, registry *prometheus.Registry) float64 {
	t.Helper()
	return counted(t, registry, "lemma_webhook_claims_deferred_total")
}

// counted reads the first value of a counter.
func counted(t *testing.T, registry *prometheus.Registry, name string) float64 {
	t.Helper()
	found, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	return 0
}

// Endpoints of one workspace that do not answer leave some of the calls for such endpoints to
// another workspace.
func TestUnresponsiveEndpointsOfAWorkspaceLeaveCallsToOthers(t *testing.T) {
	t.Parallel()
	l := newLimiter(32, 8, 24, func(uuid.UUID) bool { return false })
	one, other := lemma.NewID(), lemma.NewID()
	var some []readyEndpoint
	for range 100 {
		some = append(some, readyEndpoint{one, lemma.NewID()})
	}
	some = append(some, readyEndpoint{other, lemma.NewID()})
	for _, e := range some {
		l.recordAnswer(e.workspace, e.endpoint, false)
	}
	of := map[uuid.UUID]int{}
	c := l.capacity(some)
	for i, ws := range c.workspaces {
		of[ws.Bytes] += c.free[i]
		l.acquire(ws.Bytes, c.endpoints[i].Bytes)
	}
	if of[one] != 12 || of[other] != 1 {
		t.Errorf("%d calls of the one and %d of the other, want 12 and 1", of[one], of[other])
	}
	if c := l.capacity(some); len(c.endpoints) != 0 {
		t.Errorf("%d more", len(c.endpoints))
	}
}

// With one call at a time, older messages are not always called first.
func TestEqualEndpointsAreCalledInRandomOrder(t *testing.T) {
	t.Parallel()
	b := setup(t, func(o *Options) { o.Workers = 1 })
	slow, _ := b.endpoint("/slow")
	for range 50 {
		b.write(b.message(slow))
	}
	b.Exec(`update outbox set due_at = due_at - interval '1 hour'`)
	quick, _ := b.endpoint("/quick")
	b.write(b.message(quick))
	for range 40 { // 40 times the same order has a probability of 10^-12
		b.run(b.Webhooks, 1)
		if requests := b.receiver.all(); requests[len(requests)-1].path == "/quick" {
			return
		}
	}
	t.Error("the quick endpoint was not called")
}

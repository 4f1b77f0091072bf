package webhooks

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/slots"
)

// Workspaces whose answers cannot be settled leave calls to others, however many they are.
func TestUnsettledCallsOfWorkspacesApart(t *testing.T) {
	t.Parallel()
	one, another := lemma.NewID(), lemma.NewID()
	s := apartNow(one, another)
	var ended []func()
	begin := func(ws uuid.UUID) (may bool) {
		end, may := s.begin(ws)
		if may {
			ended = append(ended, end)
		}
		return may
	}
	for range maxApart / 2 {
		if !begin(one) || !begin(another) {
			t.Fatal("a call does not begin")
		}
	}
	if begin(one) || !s.isFull(one) || !s.isFull(another) {
		t.Error("a further call of a workspace apart begins")
	}
	for range maxUnsettled - maxApart {
		if free := lemma.NewID(); s.isFull(free) || !begin(free) {
			t.Fatal("a call of another workspace does not begin")
		}
	}
	for _, end := range ended {
		end()
	}
	if n := s.open.Load(); n != 0 || s.isFull(one) || !begin(one) {
		t.Errorf("%d are open", n)
	}
}

// A workspace apart whose calls may not begin leaves those of the process to others: its messages are given back, and
// not claimed.
func TestAFullWorkspaceApartIsNotClaimed(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	e, _ := b.endpoint("/hook")
	b.write(b.message(e), b.message(e), b.message(e))
	taken, err := b.claimMore(t.Context(), b.Workspace, e.ID, 3, 1<<20)
	b.Must(err)
	s := b.settler
	s.apart[b.Workspace] = &apart{until: time.Now().Add(time.Minute)}
	var ended []func()
	for range maxApart / 2 {
		end, _ := s.begin(b.Workspace)
		ended = append(ended, end)
	}
	buf := b.buffers.acquire(e.ID)
	b.buffers.add(buf, b.Workspace, taken[1:])
	b.limiter.acquire(b.Workspace, e.ID)
	var calls sync.WaitGroup
	b.serve(t.Context(), &calls, b.buffers.begin(taken[0]), buf)
	n := b.Count(`select count(*) from outbox where leased_by is null and attempts = 0 and due_at <= now()`)
	if n != 3 || len(b.receiver.all()) > 0 {
		t.Errorf("%d of 3 are given back, %d called", n, len(b.receiver.all()))
	}
	if b.buffers.bytes != 0 || b.limiter.all != 0 {
		t.Errorf("%d bytes and %d calls are counted", b.buffers.bytes, b.limiter.all)
	}
	if n := b.limiter.spare(b.Workspace, e.ID); n != 0 || b.limiter.tryAcquire(b.Workspace, e.ID) {
		t.Errorf("%d calls are spare", n)
	}
	b.run(b.Webhooks, 0)
	ended[0]()
	b.run(b.Webhooks, 3)
}

// A workspace whose answers cannot be settled leaves calls to others.
func TestUnsettledCallsOfOneWorkspace(t *testing.T) {
	t.Parallel()
	s := apartNow()
	busy := lemma.NewID()
	var ended []func()
	for range maxOfOne {
		end, _ := s.begin(busy)
		ended = append(ended, end)
	}
	none, cancel := context.WithCancel(t.Context())
	cancel() // nothing waits
	if _, err := s.slots.Await(none, slots.Resource{Workspace: busy}); err == nil {
		t.Error("a further call of the workspace begins")
	}
	if _, err := s.slots.Await(none, slots.Resource{Workspace: lemma.NewID()}); err != nil {
		t.Error("no call of another workspace begins")
	}
	ended[0]()
	end, _ := s.begin(busy)
	end()
	if n := s.open.Load(); n != maxOfOne-1 {
		t.Errorf("%d are open", n)
	}
}

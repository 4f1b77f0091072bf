package hooks

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"lemma"
	"lemma/flows/admission"
	"lemma/pgtest"
	"lemma/slots"
)

// Webhooks of one workspace whose large bodies come slowly do not prevent that those of
// another are read. Their senders need no signature for it.
func TestSlowBodiesOfOneWorkspace(t *testing.T) {
	b := setup(t)
	h := b.hooks()
	other := newBundle(pgtest.Shop{T: t, Pool: b.Pool, Workspace: pgtest.Workspace(t, b.Pool)})
	other.accounts = b.accounts // one process
	other.provider = other.create(other.key)
	large := fmt.Sprintf(`{"type":"delivered","notification_id":%q,"detail":%q}`, other.notification(1), strings.Repeat("x", smallBody))
	done := make(chan error)
	var ends []*io.PipeWriter
	for range mostLarge {
		r := b.request("e", "")
		begin, end := io.Pipe()
		r.Body, r.ContentLength = begin, -1
		ends = append(ends, end)
		t.Cleanup(func() { _ = end.Close() })
		go func() { done <- h.Receive(r, "http", b.path()) }()
		go func() { _, _ = end.Write(make([]byte, smallBody+1)) }()
	}
	for range mostLarge - ofOne { // the others have no slot
		select {
		case err := <-done:
			if !admission.IsOverloaded(err) {
				t.Errorf("%v", err)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("one workspace has all slots")
		}
	}
	if err := other.receive(h, "e", large); err != nil {
		t.Errorf("of another workspace: %v", err)
	}
	if err := b.receive(h, "e", `{"type":"delivered","notification_id":"ntf_none"}`); err != nil {
		t.Errorf("a small one: %v", err)
	}
	for _, end := range ends {
		_ = end.Close()
	}
	for range ofOne {
		if err := <-done; lemma.KindOf(err) == lemma.Unavailable {
			t.Errorf("%v", err)
		}
	}
}

// Bodies that come slowly from the beginning do not prevent that other large ones of their
// workspace are read.
func TestSlowBodiesHaveNoSlot(t *testing.T) {
	b := setup(t)
	h := b.hooks()
	done := make(chan error, mostLarge)
	begun := make(chan struct{}, mostLarge)
	var ends []*io.PipeWriter
	for range mostLarge {
		r := b.request("e", "")
		begin, end := io.Pipe()
		r.Body, r.ContentLength = begin, MostBody
		ends = append(ends, end)
		t.Cleanup(func() { _ = end.Close() })
		go func() { done <- h.Receive(r, "http", b.path()) }()
		go func() { _, _ = end.Write([]byte("{")); begun <- struct{}{} }()
	}
	for range mostLarge {
		select {
		case <-begun: // the body is being read
		case err := <-done:
			t.Fatal(err)
		}
	}
	large := fmt.Sprintf(`{"type":"delivered","notification_id":%q,"detail":%q}`, b.notification(1), strings.Repeat("x", smallBody))
	if err := b.receive(h, "e", large); err != nil {
		t.Errorf("a large one: %v", err)
	}
	for _, end := range ends {
		_ = end.Close()
	}
	for range ends {
		if err := <-done; lemma.KindOf(err) == lemma.Unavailable {
			t.Errorf("%v", err)
		}
	}
}

// Strangers who send large bodies slowly do not keep another one of the workspace out: the oldest
// of them loses its slot, and its memory.
func TestSlowLargeBodiesLoseTheirSlots(t *testing.T) {
	b := setup(t)
	h := b.hooks()
	done := make(chan error, ofOne)
	var ends []*io.PipeWriter
	for range ofOne {
		r := b.request("e", "")
		begin, end := io.Pipe()
		r.Body, r.ContentLength = begin, MostBody
		ends = append(ends, end)
		t.Cleanup(func() { _ = end.Close() })
		go func() { done <- h.Receive(r, "http", b.path()) }()
		_, err := end.Write(make([]byte, smallBody+1))
		b.Must(err)
	}
	for range ofOne {
		pgtest.Eventually(t, 10*time.Second, "all slots are taken", func() bool {
			h.large.mu.Lock()
			defer h.large.mu.Unlock()
			return len(h.large.coming) == ofOne
		})
	}
	large := fmt.Sprintf(`{"type":"delivered","notification_id":%q,"detail":%q}`, b.notification(1), strings.Repeat("x", smallBody))
	h.large.mu.Lock()
	oldest := (*largeBody)(nil)
	for one := range h.large.coming {
		one.since = one.since.Add(-largeTime)
		if oldest == nil || one.since.Before(oldest.since) {
			oldest = one
		}
	}
	h.large.mu.Unlock()
	if err := b.receive(h, "e", large); err != nil {
		t.Errorf("a quick one: %v", err)
	}
	if !oldest.cut || oldest.whole != nil {
		t.Error("the oldest has not lost its slot")
	}
	for _, end := range ends {
		_ = end.Close()
	}
	busy := 0
	for range ofOne {
		if err := <-done; admission.IsOverloaded(err) {
			busy++
		}
	}
	if n := h.large.slots.Taken(slots.Resource{Workspace: b.Workspace}); busy != 1 || n != 0 || len(h.large.coming) != 0 {
		t.Errorf("%d are refused as busy, %d slots and %d bodies are left", busy, n, len(h.large.coming))
	}
}

// A body that takes all the time of its request is sent again, and is no failure of the server,
// which would be logged.
func TestABodyThatTakesAllTheTime(t *testing.T) {
	b := setup(t)
	h := b.hooks()
	ctx, cancel := context.WithCancel(t.Context())
	r := b.request("e", "{}").WithContext(ctx)
	begin, end := io.Pipe()
	r.Body, r.ContentLength = begin, -1
	go func() {
		_, _ = end.Write([]byte("{}"))
		cancel()
		_ = end.Close()
	}()
	if err := h.Receive(r, "http", b.path()); !admission.IsOverloaded(err) {
		t.Errorf("%v", err)
	}
}

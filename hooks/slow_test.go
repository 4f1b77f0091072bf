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

// large is a body above smallBody.
func (b *bundle) large() string {
	return fmt.Sprintf(`{"type":"delivered","notification_id":%q,"detail":%q}`, b.notification(1), strings.Repeat("x", smallBody))
}

// Large webhooks of one workspace that have all of its memory do not prevent that those of another
// are read, nor small ones.
func TestLargeBodiesOfOneWorkspace(t *testing.T) {
	b := setup(t)
	h := b.hooks()
	other := newBundle(pgtest.Shop{T: t, Pool: b.Pool, Workspace: pgtest.Workspace(t, b.Pool)})
	other.accounts = b.accounts // one process
	other.provider = other.create(other.key)
	leave, err := h.large.bytes.TryN(slots.Resource{Workspace: b.Workspace}, limitsOfLarge.Workspace-smallBody)
	b.Must(err)
	if err := b.receive(h, "e", b.large()); !admission.IsOverloaded(err) {
		t.Errorf("%v", err)
	}
	if err := other.receive(h, "e", other.large()); err != nil {
		t.Errorf("of another workspace: %v", err)
	}
	if err := b.receive(h, "e", `{"type":"delivered","notification_id":"ntf_none"}`); err != nil {
		t.Errorf("a small one: %v", err)
	}
	leave()
	if err := b.receive(h, "e", b.large()); err != nil {
		t.Errorf("%v", err)
	}
	if n := h.large.bytes.Taken(slots.Resource{Workspace: b.Workspace}); n != 0 || len(h.large.coming) != 0 {
		t.Errorf("%d bytes of %d bodies are left", n, len(h.large.coming))
	}
}

// Bodies that come slowly from the beginning do not prevent that other large ones of their
// workspace are read.
func TestSlowBodiesHoldNoMemory(t *testing.T) {
	b := setup(t)
	h := b.hooks()
	const slow = 200
	done := make(chan error, slow)
	begun := make(chan struct{}, slow)
	var ends []*io.PipeWriter
	for range slow {
		r := b.request("e", "")
		begin, end := io.Pipe()
		r.Body, r.ContentLength = begin, MostBody
		ends = append(ends, end)
		t.Cleanup(func() { _ = end.Close() })
		go func() { done <- h.Receive(r, "http", b.path()) }()
		go func() { _, _ = end.Write([]byte("{")); begun <- struct{}{} }()
	}
	for range slow {
		select {
		case <-begun: // the body is being read
		case err := <-done:
			t.Fatal(err)
		}
	}
	if err := b.receive(h, "e", b.large()); err != nil {
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

// Strangers who send large bodies slowly do not keep another one of the workspace out: the one whose
// client was waited for longest loses its memory.
func TestSlowLargeBodiesLoseTheirMemory(t *testing.T) {
	b := setup(t)
	h := b.hooks()
	const strangers = 4
	done := make(chan error, strangers)
	var ends []*io.PipeWriter
	for range strangers {
		r := b.request("e", "")
		begin, end := io.Pipe()
		r.Body, r.ContentLength = begin, MostBody
		ends = append(ends, end)
		t.Cleanup(func() { _ = end.Close() })
		go func() { done <- h.Receive(r, "http", b.path()) }()
		_, err := end.Write(make([]byte, smallBody+1))
		b.Must(err)
	}
	of := slots.Resource{Workspace: b.Workspace}
	pgtest.Eventually(t, 10*time.Second, "they have their memory", func() bool { return h.large.bytes.Taken(of) == strangers*2*largeStep })
	pgtest.Eventually(t, 10*time.Second, "their clients are waited for", func() bool {
		h.large.mu.Lock()
		defer h.large.mu.Unlock()
		for one := range h.large.coming {
			if one.slowness() < largeTime {
				return false
			}
		}
		return true
	})
	rest := limitsOfLarge.Workspace - strangers*2*largeStep
	leave, err := h.large.bytes.TryN(of, rest)
	b.Must(err)
	h.large.mu.Lock()
	var slowest *largeBody
	for one := range h.large.coming {
		one.mu.Lock()
		one.waited = time.Hour
		if slowest == nil {
			one.waited, slowest = 2*time.Hour, one
		}
		one.mu.Unlock()
	}
	h.large.mu.Unlock()
	if err := b.receive(h, "e", b.large()); err != nil {
		t.Errorf("a quick one: %v", err)
	}
	if !slowest.lost || slowest.whole != nil {
		t.Error("the slowest has not lost its memory")
	}
	for i, end := range ends {
		_ = end.CloseWithError([]error{io.EOF, io.ErrUnexpectedEOF}[i%2])
	}
	busy := 0
	for range strangers {
		if err := <-done; admission.IsOverloaded(err) {
			busy++
		}
	}
	if n := h.large.bytes.Taken(of); busy != 1 || n != rest || len(h.large.coming) != 0 {
		t.Errorf("%d are refused as busy, %d bytes and %d bodies are left", busy, n-rest, len(h.large.coming))
	}
	leave()
}

// A body that waits for memory is not slow for that. It gets the memory of one whose client sends
// nothing.
func TestABodyThatWaitsForMemoryIsNotSlow(t *testing.T) {
	b := setup(t)
	h := b.hooks()
	of := slots.Resource{Workspace: b.Workspace}
	honest, silent := h.large.begin(b.Workspace), h.large.begin(b.Workspace)
	part := make([]byte, largeStep)
	for _, one := range []*largeBody{honest, silent} {
		b.Must(h.large.add(t.Context(), one, part))
	}
	leave, err := h.large.bytes.TryN(of, limitsOfLarge.Workspace-2*largeStep)
	b.Must(err)
	defer leave()
	silent.reads()
	if err := h.large.add(t.Context(), honest, part); err != nil || !silent.lost {
		t.Errorf("%v, lost %v", err, silent.lost)
	}
	quick := h.large.begin(b.Workspace)
	if err := h.large.add(t.Context(), quick, part); !admission.IsOverloaded(err) || honest.lost {
		t.Errorf("%v, lost %v", err, honest.lost)
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

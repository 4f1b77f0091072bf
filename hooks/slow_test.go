package hooks

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/flows/admission"
	"lemma/pgtest"
	"lemma/slots"
)

// large is a body above firstStage.
func (b *bundle) large() string { return b.body(firstStage) }

func (b *bundle) body(above int) string {
	return fmt.Sprintf(`{"type":"delivered","notification_id":%q,"detail":%q}`, b.notification(1), strings.Repeat("x", above))
}

// Large webhooks of one workspace that have all of its memory do not prevent that those of another
// are read, nor small ones.
func TestLargeBodiesOfOneWorkspace(t *testing.T) {
	b := setup(t)
	h := b.hooks()
	other := newBundle(pgtest.Shop{T: t, Pool: b.Pool, Workspace: pgtest.Workspace(t, b.Pool)})
	other.accounts = b.accounts // one process
	other.provider = other.create(other.key)
	leave, err := h.large.first.bytes.TryN(slots.Resource{Workspace: b.Workspace}, limitsOfLarge.Workspace-smallBody)
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
	if err := b.receive(h, "e", b.body(smallBody)); err != nil {
		t.Errorf("a short one: %v", err)
	}
	leave()
	if err := b.receive(h, "e", b.large()); err != nil {
		t.Errorf("%v", err)
	}
	if n := h.large.first.bytes.Taken(slots.Resource{Workspace: b.Workspace}); n != 0 || len(h.large.first.coming) != 0 {
		t.Errorf("%d bytes of %d bodies are left", n, len(h.large.first.coming))
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
	pgtest.Eventually(t, 10*time.Second, "their clients are waited for", func() bool {
		h.large.first.mu.Lock()
		defer h.large.first.mu.Unlock()
		slow := 0
		for one := range h.large.first.coming {
			if one.slowness() >= largeTime {
				slow++
			}
		}
		return slow == strangers
	})
	rest := limitsOfLarge.Workspace - strangers*(firstStage+largePart)
	leave, err := h.large.first.bytes.TryN(of, rest)
	b.Must(err)
	h.large.first.mu.Lock()
	var slowest *largeBody
	for one := range h.large.first.coming {
		one.mu.Lock()
		one.waited = time.Hour
		if slowest == nil {
			one.waited, slowest = 2*time.Hour, one
		}
		one.mu.Unlock()
	}
	h.large.first.mu.Unlock()
	if err := b.receive(h, "e", b.large()); err != nil {
		t.Errorf("a quick one: %v", err)
	}
	if slowest.leave != nil || slowest.whole != nil {
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
	if n := h.large.first.bytes.Taken(of); busy != 1 || n != rest || len(h.large.first.coming) != 0 {
		t.Errorf("%d are refused as busy, %d bytes and %d bodies are left", busy, n-rest, len(h.large.first.coming))
	}
	leave()
}

// paced is a body that comes in parts, each after a time.
type paced struct {
	left  int
	pause time.Duration
}

func (p *paced) Read(b []byte) (int, error) {
	if p.left <= 0 {
		return 0, io.EOF
	}
	time.Sleep(p.pause)
	n := min(len(b), p.left, largePart)
	p.left -= n
	return n, nil
}

// Many large bodies that come at the same time, and quickly, do not wait for each other's memory in a
// circle: those that have some are read to their ends.
func TestManyLargeBodiesAtATime(t *testing.T) {
	t.Parallel()
	l, ws := newLargeBodies(), uuid.New()
	var all sync.WaitGroup
	for i := range 24 { // three times as many as there is memory for
		all.Go(func() {
			pause := time.Duration(1+i%2*9) * time.Millisecond // half of them take 300 ms
			r := httptest.NewRequest(http.MethodPost, "/", &paced{MostBody - smallBody, pause})
			_, leave, err := l.read(r, ws, make([]byte, smallBody))
			if err != nil {
				t.Error(err)
				return
			}
			leave()
		})
	}
	all.Wait()
	for _, s := range []*stage{l.short, l.first, l.whole} {
		if n := s.bytes.Taken(slots.Resource{Workspace: ws}); n != 0 || len(s.coming) != 0 {
			t.Errorf("%d bytes of %d bodies are left", n, len(s.coming))
		}
	}
}

// Strangers of whose large bodies little has come take little memory: a whole one is read beside them,
// and none of theirs is needed for it.
func TestLittleOfManyLargeBodies(t *testing.T) {
	t.Parallel()
	l, ws := newLargeBodies(), uuid.New()
	var ends []*io.PipeWriter
	done := make(chan error, 25)
	for range cap(done) {
		begin, end := io.Pipe()
		ends = append(ends, end)
		r := httptest.NewRequest(http.MethodPost, "/", begin)
		r.ContentLength = MostBody
		go func() {
			_, _, err := l.read(r, ws, make([]byte, smallBody))
			done <- err
		}()
		if _, err := end.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	whole := httptest.NewRequest(http.MethodPost, "/", &paced{MostBody - smallBody, time.Millisecond})
	_, leave, err := l.read(whole, ws, make([]byte, smallBody))
	if err != nil {
		t.Fatal(err)
	}
	leave()
	for _, end := range ends {
		_ = end.CloseWithError(io.ErrUnexpectedEOF)
	}
	for range ends {
		if err := <-done; admission.IsOverloaded(err) {
			t.Error("one has lost its memory")
		}
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

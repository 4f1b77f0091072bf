package hooks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"

	"lemma/sender"
	"lemma/slots"
)

// largeBodies bound the bytes of the bodies above smallBody. Their senders need no signature before
// the whole body has come, and may send slowly. A body has memory before it is read: for its first
// firstStage bytes, and once these have come, for all of it. So none waits for memory while another
// one waits for its own, and who sends little takes little. When there is none, the body whose client
// is slowest loses its own. Short ones, whose length is known to be at most firstStage, have memory of
// their own: they need no second one, and do not wait behind those that wait for it.
type largeBodies struct{ short, first, whole *stage }

// stage is memory of bodies.
type stage struct {
	bytes *slots.Slots

	mu     sync.Mutex
	coming map[*largeBody]struct{}
}

// largeBody is a body whose rest is coming.
type largeBody struct {
	in   *stage
	of   slots.Resource
	size int // bytes of memory

	mu     sync.Mutex
	whole  []byte
	leave  func()        // frees its memory; nil: it has none
	came   int           // bytes that were read while the client was waited for
	waited time.Duration // for its client, in reads that have ended
	since  time.Time     // the begin of the current read; zero: there is none
}

// limitsOfLarge are bytes of each stage.
var limitsOfLarge = slots.Limits{Process: 32 << 20, Workspace: 8 << 20}

const (
	firstStage = 256 << 10
	largeTime  = 100 * time.Millisecond // that a client may be waited for while others wait for memory
	largeRate  = 1 << 20                // bytes in a second, the time of which does not count
	largePart  = 32 << 10               // bytes that are read at a time
	largeTry   = 20 * time.Millisecond  // after which a body that waits looks for a slow one again
)

func newLargeBodies() *largeBodies { return &largeBodies{newStage(), newStage(), newStage()} }

func newStage() *stage {
	return &stage{bytes: slots.New(limitsOfLarge, isBusy), coming: map[*largeBody]struct{}{}}
}

// read reads the rest of a body that begins with start, up to a part more than MostBody. leave
// frees its memory, and is nil with an error.
func (l *largeBodies) read(r *http.Request, ws uuid.UUID, start []byte) (body []byte, leave func(), err error) {
	size := MostBody // of a body whose length is not known
	if r.ContentLength >= 0 {
		size = int(min(r.ContentLength, MostBody))
	}
	in := l.first
	if size <= firstStage {
		in = l.short
	}
	b, err := in.begin(r.Context(), ws, min(size, firstStage)+largePart)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if b.end(); leave == nil { // after a panic, too
			b.free()
		}
	}()
	b.add(start, 0)
	for part := make([]byte, largePart); ; {
		b.reads()
		got, err := r.Body.Read(part)
		b.hasRead()
		n := b.add(part[:got], got)
		switch {
		case n == 0:
			return nil, nil, busy
		case errors.Is(err, io.EOF), n > MostBody:
			if b.end(); b.add(nil, 0) == 0 {
				return nil, nil, busy
			}
			return b.whole, b.free, nil
		case err != nil:
			return nil, nil, fmt.Errorf("read the body: %w: %w", sender.ErrUnreadable, err)
		case n > firstStage && b.in == l.first:
			if b, err = l.promote(r.Context(), b, size+largePart); err != nil {
				return nil, nil, err
			}
		}
	}
}

// promote gives a body memory for all of it. It returns the old one with an error.
func (l *largeBodies) promote(ctx context.Context, b *largeBody, size int) (*largeBody, error) {
	all, err := l.whole.begin(ctx, b.of.Workspace, size)
	if err != nil {
		return b, err
	}
	b.end()
	if b.add(nil, 0) == 0 {
		all.end()
		all.free()
		return b, busy
	}
	all.mu.Lock()
	all.whole, all.came, all.waited = append(all.whole, b.whole...), b.came, b.waited
	all.mu.Unlock()
	b.free()
	return all, nil
}

// begin waits for the memory of a body.
func (s *stage) begin(ctx context.Context, ws uuid.UUID, size int) (*largeBody, error) {
	b := &largeBody{in: s, of: slots.Resource{Workspace: ws}, size: size}
	leave, err := s.bytes.TryN(b.of, size)
	if err != nil {
		entered := make(chan struct{})
		go s.evict(b.of, size, entered)
		leave, err = s.bytes.EnterN(ctx, b.of, size)
		close(entered)
	}
	if err != nil {
		return nil, busy
	}
	b.whole, b.leave = make([]byte, 0, size), leave
	s.mu.Lock()
	defer s.mu.Unlock()
	s.coming[b] = struct{}{}
	return b, nil
}

// evict frees memory for a body until it has its own.
func (s *stage) evict(of slots.Resource, size int, entered <-chan struct{}) {
	for freed := 0; ; {
		select {
		case <-entered:
			return
		default:
		}
		if n := s.takeFromSlowest(of, size); n > 0 && freed+n < size {
			freed += n
			continue
		}
		freed = 0
		select {
		case <-entered:
			return
		case <-time.After(largeTry):
		}
	}
}

// end ends the time in which a body may lose its memory.
func (b *largeBody) end() {
	b.in.mu.Lock()
	defer b.in.mu.Unlock()
	delete(b.in.coming, b)
}

// add adds what has come, of which the client was waited for some, and returns how many bytes there
// are; 0 if the body has lost its memory.
func (b *largeBody) add(part []byte, came int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.leave == nil {
		return 0
	}
	b.whole, b.came = append(b.whole, part...), b.came+came
	return len(b.whole)
}

func (b *largeBody) reads() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.since = time.Now()
}

func (b *largeBody) hasRead() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waited, b.since = b.waited+time.Since(b.since), time.Time{}
}

// slowness is for how much longer its client has been waited for than it takes at largeRate.
func (b *largeBody) slowness() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	slow := b.waited - time.Duration(b.came)*time.Second/largeRate
	if !b.since.IsZero() {
		slow += time.Since(b.since)
	}
	return slow
}

// takeFromSlowest frees the memory of the body whose client is slowest, if there is too little: one of
// the same workspace if that has too much of its memory, and otherwise any. It returns how many bytes it
// had.
func (s *stage) takeFromSlowest(of slots.Resource, size int) (freed int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if leave, err := s.bytes.TryN(of, size); err == nil {
		leave()
		return 0
	}
	own := s.bytes.Taken(of)+size > limitsOfLarge.Workspace
	var slowest *largeBody
	most := largeTime
	for b := range s.coming {
		if slow := b.slowness(); (!own || b.of == of) && slow >= most {
			slowest, most = b, slow
		}
	}
	if slowest == nil {
		return 0
	}
	delete(s.coming, slowest)
	slowest.free()
	return slowest.size
}

// free frees the memory of a body, once: that of one whose client may send nothing more for long, too.
func (b *largeBody) free() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.leave != nil {
		b.leave()
	}
	b.whole, b.leave = nil, nil
}

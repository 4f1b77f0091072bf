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
// the whole body has come, and may send slowly. A body has memory for all of it before the rest is
// read, so that none waits for memory while it has some. When there is none, the body whose client
// is slowest loses its own.
type largeBodies struct {
	bytes *slots.Slots

	mu     sync.Mutex
	coming map[*largeBody]struct{}
}

// largeBody is a body whose rest is coming.
type largeBody struct {
	of   slots.Resource
	size int // bytes of memory

	mu     sync.Mutex
	whole  []byte
	leave  func()        // frees its memory; nil: it has none
	waited time.Duration // for its client, in reads that have ended
	since  time.Time     // the begin of the current read; zero: there is none
}

// limitsOfLarge are bytes.
var limitsOfLarge = slots.Limits{Process: 32 << 20, Workspace: 8 << 20}

const (
	largeTime = 100 * time.Millisecond // that a client may be waited for while others wait for memory
	largeRate = 1 << 20                // bytes in a second, the time of which does not count
	largePart = 32 << 10               // bytes that are read at a time
	largeTry  = 20 * time.Millisecond  // after which a body that waits looks for a slow one again
)

func newLargeBodies() *largeBodies {
	return &largeBodies{bytes: slots.New(limitsOfLarge, isBusy), coming: map[*largeBody]struct{}{}}
}

// read reads the rest of a body that begins with start, up to a part more than MostBody. leave
// frees its memory, and is nil with an error.
func (l *largeBodies) read(r *http.Request, ws uuid.UUID, start []byte) (body []byte, leave func(), err error) {
	size := MostBody // of a body whose length is not known
	if r.ContentLength >= 0 {
		size = int(min(r.ContentLength, MostBody))
	}
	b, err := l.begin(r.Context(), ws, size+largePart)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if l.came(b); leave == nil { // after a panic, too
			b.free()
		}
	}()
	b.add(start)
	for part := make([]byte, largePart); ; {
		b.reads()
		got, err := r.Body.Read(part)
		b.hasRead()
		n := b.add(part[:got])
		if n == 0 {
			return nil, nil, busy
		}
		switch {
		case errors.Is(err, io.EOF), n > MostBody:
			if l.came(b); b.add(nil) == 0 {
				return nil, nil, busy
			}
			return b.whole, b.free, nil
		case err != nil:
			return nil, nil, fmt.Errorf("read the body: %w: %w", sender.ErrUnreadable, err)
		}
	}
}

// begin waits for the memory of a body.
func (l *largeBodies) begin(ctx context.Context, ws uuid.UUID, size int) (*largeBody, error) {
	b := &largeBody{of: slots.Resource{Workspace: ws}, size: size}
	entered := make(chan struct{})
	go l.evict(b.of, size, entered)
	leave, err := l.bytes.EnterN(ctx, b.of, size)
	close(entered)
	if err != nil {
		return nil, busy
	}
	b.whole, b.leave = make([]byte, 0, size), leave
	l.mu.Lock()
	defer l.mu.Unlock()
	l.coming[b] = struct{}{}
	return b, nil
}

// evict frees memory for a body until it has its own.
func (l *largeBodies) evict(of slots.Resource, size int, entered <-chan struct{}) {
	for {
		for freed := 0; freed < size; {
			n := l.takeFromSlowest(of, size)
			if n == 0 {
				break
			}
			freed += n
		}
		select {
		case <-entered:
			return
		case <-time.After(largeTry):
		}
	}
}

// came ends the time in which a body may lose its memory.
func (l *largeBodies) came(b *largeBody) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.coming, b)
}

// add adds what has come, and returns how many bytes that are; 0 if the body has lost its memory.
func (b *largeBody) add(part []byte) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.leave == nil {
		return 0
	}
	b.whole = append(b.whole, part...)
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
	slow := b.waited - time.Duration(len(b.whole))*time.Second/largeRate
	if !b.since.IsZero() {
		slow += time.Since(b.since)
	}
	return slow
}

// takeFromSlowest frees the memory of the body whose client is slowest, if there is too little: one of
// the same workspace if that has too much of its memory, and otherwise any. It returns how many bytes it
// had.
func (l *largeBodies) takeFromSlowest(of slots.Resource, size int) (freed int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if leave, err := l.bytes.TryN(of, size); err == nil {
		leave()
		return 0
	}
	own := l.bytes.Taken(of)+size > limitsOfLarge.Workspace
	var slowest *largeBody
	most := largeTime
	for b := range l.coming {
		if slow := b.slowness(); (!own || b.of == of) && slow >= most {
			slowest, most = b, slow
		}
	}
	if slowest == nil {
		return 0
	}
	delete(l.coming, slowest)
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

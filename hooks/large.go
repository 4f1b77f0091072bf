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
// the whole body has come, and may send slowly: when there is no memory, the body whose client has
// been waited for longest loses its own. The time in which a body waits for memory does not count.
type largeBodies struct {
	bytes *slots.Slots

	mu     sync.Mutex
	coming map[*largeBody]struct{}
}

// largeBody is a body whose rest is coming.
type largeBody struct {
	of slots.Resource

	mu     sync.Mutex
	whole  []byte
	held   int           // bytes of memory: the capacity of whole
	lost   bool          // its memory is taken
	waited time.Duration // for its client, in reads that have ended
	since  time.Time     // the begin of the current read; zero: there is none
}

// limitsOfLarge are bytes.
var limitsOfLarge = slots.Limits{Process: 32 << 20, Workspace: 8 << 20}

const (
	largeTime = 100 * time.Millisecond // that a client may be waited for while others wait for memory
	largePart = 32 << 10               // bytes that are read at a time
	largeStep = 64 << 10               // by which its memory grows
	largeTry  = 20 * time.Millisecond  // after which a body looks for memory again, for slots.Wait
)

func newLargeBodies() *largeBodies {
	return &largeBodies{bytes: slots.New(limitsOfLarge, isBusy), coming: map[*largeBody]struct{}{}}
}

// read reads the rest of a body that begins with start, up to a part more than MostBody. leave
// frees its memory, and is nil with an error.
func (l *largeBodies) read(r *http.Request, ws uuid.UUID, start []byte) (body []byte, leave func(), err error) {
	b := l.begin(ws)
	defer func() {
		if l.came(b); leave == nil { // after a panic, too
			l.free(b)
		}
	}()
	if err := l.add(r.Context(), b, start); err != nil {
		return nil, nil, err
	}
	for part := make([]byte, largePart); ; {
		b.reads()
		n, err := r.Body.Read(part)
		b.hasRead()
		if full := l.add(r.Context(), b, part[:n]); full != nil {
			return nil, nil, full
		}
		switch {
		case errors.Is(err, io.EOF), b.size() > MostBody:
			if l.came(b); b.size() == 0 {
				return nil, nil, busy
			}
			return b.whole, func() { l.free(b) }, nil
		case err != nil:
			return nil, nil, fmt.Errorf("read the body: %w: %w", sender.ErrUnreadable, err)
		}
	}
}

func (l *largeBodies) begin(ws uuid.UUID) *largeBody {
	b := &largeBody{of: slots.Resource{Workspace: ws}}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.coming[b] = struct{}{}
	return b
}

// came ends the time in which a body may lose its memory.
func (l *largeBodies) came(b *largeBody) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.coming, b)
}

// add adds what has come. It waits for memory, and fails if the body has lost its own.
func (l *largeBodies) add(ctx context.Context, b *largeBody, part []byte) error {
	for begun := time.Now(); ; {
		if done, lost := l.tryAdd(b, part); done {
			return nil
		} else if lost || time.Since(begun) > slots.Wait {
			return busy
		}
		if l.takeFromSlowest(b) {
			continue
		}
		select {
		case <-time.After(largeTry):
		case <-ctx.Done():
			return busy
		}
	}
}

func (l *largeBodies) tryAdd(b *largeBody, part []byte) (done, lost bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	need := len(b.whole) + len(part)
	switch {
	case b.lost:
		return false, true
	case need > b.held:
		held := (need + largeStep - 1) / largeStep * largeStep
		if !l.bytes.Resize(b.of, b.held, held) {
			return false, false
		}
		b.whole, b.held = append(make([]byte, 0, held), b.whole...), held
	}
	b.whole = append(b.whole, part...)
	return true, false
}

// size is how many bytes have come; 0 if they are lost.
func (b *largeBody) size() int {
	b.mu.Lock()
	defer b.mu.Unlock()
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

// slowness is how long its client has been waited for.
func (b *largeBody) slowness() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.since.IsZero() {
		return b.waited
	}
	return b.waited + time.Since(b.since)
}

// takeFromSlowest frees the memory of the body whose client has been waited for longest: one of the
// same workspace if that has all of its memory, and otherwise any.
func (l *largeBodies) takeFromSlowest(needs *largeBody) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.bytes.Taken(needs.of)+largeStep > limitsOfLarge.Workspace
	var slowest *largeBody
	most := largeTime
	for b := range l.coming {
		if slow := b.slowness(); b != needs && (!all || b.of == needs.of) && slow >= most {
			slowest, most = b, slow
		}
	}
	if slowest == nil {
		return false
	}
	delete(l.coming, slowest)
	l.free(slowest)
	return true
}

// free frees the memory of a body: that of one whose client may send nothing more for long, too.
func (l *largeBodies) free(b *largeBody) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l.bytes.Resize(b.of, b.held, 0)
	b.whole, b.held, b.lost = nil, 0, true
}

package hooks

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"

	"lemma/slots"
)

// largeBodies bound the bodies above smallBody that are in memory. Their senders need no signature
// before the whole body has come, and may send slowly: when there is no slot, the body that has
// been coming for longest loses its own.
type largeBodies struct {
	slots *slots.Slots

	mu     sync.Mutex
	coming map[*largeBody]struct{}
}

// largeBody is a body whose rest is coming.
type largeBody struct {
	workspace uuid.UUID
	since     time.Time
	leave     func() // once

	mu    sync.Mutex
	whole []byte
	cut   bool // it has lost its slot
}

const (
	mostLarge = 32          // of a process
	ofOne     = 8           // of these, of one workspace
	largeTime = time.Second // that a body may take while others wait for its slot
	largePart = 32 << 10    // bytes that are read at a time
)

func newLargeBodies() *largeBodies {
	return &largeBodies{slots: slots.New(slots.Limits{Process: mostLarge, Workspace: ofOne}, isBusy), coming: map[*largeBody]struct{}{}}
}

// read reads the rest of a body that begins with start, up to a byte more than MostBody. leave
// frees its slot; it is nil without one.
func (l *largeBodies) read(r *http.Request, ws uuid.UUID, start []byte) (body []byte, leave func(), err error) {
	b, err := l.enter(r.Context(), ws)
	if err != nil {
		return nil, nil, err
	}
	defer l.came(b) // after a panic, too
	b.add(start)
	for part := make([]byte, largePart); ; {
		n, err := r.Body.Read(part)
		size := b.add(part[:n])
		if size > MostBody || err != nil {
			l.came(b) // it cannot lose its slot any more
			size = b.add(nil)
		}
		switch {
		case size == 0:
			return nil, nil, busy
		case size > MostBody || errors.Is(err, io.EOF):
			return b.whole, b.leave, nil
		case err != nil:
			return nil, b.leave, err
		}
	}
}

// add returns how many bytes have come, and 0 for a body that has lost its slot.
func (b *largeBody) add(part []byte) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cut {
		return 0
	}
	b.whole = append(b.whole, part...)
	return len(b.whole)
}

// lose takes the slot, and the memory: the client may send nothing more for long.
func (b *largeBody) lose() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cut, b.whole = true, nil
	b.leave()
}

func (l *largeBodies) enter(ctx context.Context, ws uuid.UUID) (*largeBody, error) {
	of := slots.Resource{Workspace: ws}
	leave, err := l.slots.Try(of)
	if err != nil {
		l.cutSlowest(ws)
		if leave, err = l.slots.Enter(ctx, of); err != nil {
			return nil, err
		}
	}
	b := &largeBody{workspace: ws, since: time.Now(), leave: sync.OnceFunc(leave)}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.coming[b] = struct{}{}
	return b, nil
}

// cutSlowest takes the slot of the body that has been coming for longest: one of the workspace if
// that has all of its slots, and otherwise any.
func (l *largeBodies) cutSlowest(ws uuid.UUID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.slots.Taken(slots.Resource{Workspace: ws}) >= ofOne
	var slowest *largeBody
	for b := range l.coming {
		if (!all || b.workspace == ws) && (slowest == nil || b.since.Before(slowest.since)) {
			slowest = b
		}
	}
	if slowest != nil && time.Since(slowest.since) >= largeTime {
		delete(l.coming, slowest)
		slowest.lose()
	}
}

// came ends the time in which a body may lose its slot.
func (l *largeBodies) came(b *largeBody) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.coming, b)
}

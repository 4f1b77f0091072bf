package tracking

import (
	"sync"
	"time"

	"github.com/google/uuid"
)

// paces are which workspaces are being applied, so that each is by one goroutine of a
// process, and how many events after a failure.
type paces struct {
	chunk int // events of a workspace that did not fail
	mu    sync.Mutex
	of    map[uuid.UUID]pace
}

type pace struct {
	busy  bool
	most  int       // events of its next chunk
	after time.Time // when it may begin
}

// begin marks a workspace as being applied and returns how many events it may apply.
func (t *paces) begin(ws uuid.UUID) (most int, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	one, known := t.of[ws]
	if !known {
		one.most = t.chunk
	}
	if one.busy || time.Now().Before(one.after) {
		return 0, false
	}
	one.busy = true
	t.of[ws] = one
	return one.most, true
}

// end halves the next chunk of a workspace that failed, and doubles that of another.
func (t *paces) end(ws uuid.UUID, most int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case err != nil:
		t.of[ws] = pace{most: max(1, most/2), after: time.Now().Add(failedFor)}
	case most < t.chunk:
		t.of[ws] = pace{most: min(t.chunk, most*2)}
	default:
		delete(t.of, ws)
	}
}

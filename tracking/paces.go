package tracking

import (
	"sync"
	"time"

	"github.com/google/uuid"
)

// paces are which workspaces are being worked on, so that each is by one goroutine of a
// process, and which rows of their queues come next.
type paces struct {
	chunk int // rows of a workspace that did not fail
	mu    sync.Mutex
	of    map[uuid.UUID]pace
}

// pace is that of a workspace that is worked on, or has failed.
type pace struct {
	part
	busy  bool
	after time.Time // when it may begin
}

// part is which rows of a queue a transaction takes, from the oldest.
type part struct {
	skip int // rows that failed by themselves
	most int
}

// begin marks a workspace as being worked on and returns which rows.
func (t *paces) begin(ws uuid.UUID) (next part, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	one, known := t.of[ws]
	if !known {
		one.most = t.chunk
	}
	if one.busy || time.Now().Before(one.after) {
		return part{}, false
	}
	one.busy = true
	t.of[ws] = one
	return one.part, true
}

// end chooses the next part of a workspace by how many rows of its last part are done. After
// an error it takes half as many, and leaves a row out that failed by itself, so that it stops
// none behind it. What was left out is tried again at the end of the queue, row by row.
func (t *paces) end(ws uuid.UUID, last part, done int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch later := time.Now().Add(failedFor); {
	case err != nil && last.most == 1:
		t.of[ws] = pace{part: part{skip: last.skip + 1, most: 1}, after: later}
	case err != nil:
		t.of[ws] = pace{part: part{skip: last.skip, most: last.most / 2}, after: later}
	case last.skip > 0 && done < last.most:
		t.of[ws] = pace{part: part{most: 1}, after: later}
	case last.skip > 0 || last.most < t.chunk:
		t.of[ws] = pace{part: part{skip: last.skip, most: min(t.chunk, last.most*2)}}
	default:
		delete(t.of, ws)
	}
}

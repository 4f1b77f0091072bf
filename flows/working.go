package flows

import (
	"sync"

	"github.com/google/uuid"
)

// working counts the workers of a process by workspace.
type working struct {
	mu      sync.Mutex
	of      map[uuid.UUID]int
	workers int
}

// enter counts a worker until leave. briefly is true for the last quarter of the workers, one at least, if all others
// work for the same workspace: they wait for no lock for long, since another workspace may need them. The others wait,
// so that each chunk is committed in the end. A single worker always waits.
func (w *working) enter(ws uuid.UUID) (briefly bool, leave func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of == nil {
		w.of = map[uuid.UUID]int{}
	}
	w.of[ws]++
	return w.of[ws] > max(1, w.workers-max(1, w.workers/4)), func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.of[ws]--; w.of[ws] == 0 {
			delete(w.of, ws)
		}
	}
}

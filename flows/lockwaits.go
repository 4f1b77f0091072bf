package flows

import "sync"

// lockWaits counts the workers of a process that wait for locks as long as it takes.
type lockWaits struct {
	mu      sync.Mutex
	waiting int
	workers int
}

// enter begins the work of a worker, until leave. briefly is true if three quarters of the workers, or all but one, wait
// for as long as it takes, so that each chunk is committed in the end. The others wait for no lock for long: a lock
// that a long transaction of a workspace has does not delay the enrollments of others. A single worker always waits.
func (w *lockWaits) enter() (briefly bool, leave func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting >= max(1, w.workers-max(1, w.workers/4)) {
		return true, func() {}
	}
	w.waiting++
	return false, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.waiting--
	}
}

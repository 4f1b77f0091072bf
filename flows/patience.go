package flows

import "sync"

// patience counts the workers of a process that wait for locks as long as it takes.
type patience struct {
	mu      sync.Mutex
	waiting int
	workers int
}

// enter begins the work of a worker, until leave. briefly is true if three quarters of the workers, or all but one, wait
// for as long as it takes, so that each chunk is committed in the end. The others wait for no lock for long: what a
// long transaction of a workspace holds does not hold up the enrollments of others. A single worker always waits.
func (p *patience) enter() (briefly bool, leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting >= max(1, p.workers-max(1, p.workers/4)) {
		return true, func() {}
	}
	p.waiting++
	return false, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.waiting--
	}
}

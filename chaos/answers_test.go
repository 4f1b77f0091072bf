package chaos

import (
	"sync"
	"testing"
)

// answers are those of a carrier to messages. They can be held back.
type answers struct {
	mu      sync.Mutex
	held    chan struct{} // answers are given when it is closed; nil: at once
	quick   int           // messages that are answered at once nevertheless
	waiting int           // messages that have waited for it
}

// hold delays the answers to all messages until the returned function is called, which
// may be called again.
func (a *answers) hold(t *testing.T) (release func()) { return a.holdAfter(t, 0) }

// holdAfter is hold after n more messages. The carrier counts them, so that a worker is
// stopped at that message however slow the test is.
func (a *answers) holdAfter(t *testing.T, n int) (release func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	held := make(chan struct{})
	a.held, a.quick, a.waiting = held, n, 0
	release = sync.OnceFunc(func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.held = nil
		close(held)
	})
	t.Cleanup(release)
	return release
}

// arrive returns what the answer to a message waits for; nil if it does not wait.
func (a *answers) arrive() (held <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.held == nil:
		return nil
	case a.quick > 0:
		a.quick--
		return nil
	}
	a.waiting++
	return a.held
}

func await(held <-chan struct{}) {
	if held != nil {
		<-held
	}
}

func (a *answers) waits() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.waiting > 0
}

// waitForHeld waits until at least one message waits for its answer.
func (h *env) waitForHeld(a *answers) {
	h.t.Helper()
	h.eventually("a message waits for its answer", a.waits)
}

// killDuringCall kills all workers while at least one waits for the answer to a message, which
// is held back. It starts others after meanwhile.
func (h *env) killDuringCall(a *answers, workers []*worker, meanwhile func(), settings ...string) {
	h.t.Helper()
	h.waitForHeld(a)
	killAll(workers)
	meanwhile()
	h.startAgain(workers, settings...)
}

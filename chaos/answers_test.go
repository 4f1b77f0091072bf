package chaos

import (
	"sync"
	"testing"
	"time"

	"lemma/pgtest"
)

// answers are those of a carrier to messages. They can be held back.
type answers struct {
	mu      sync.Mutex
	held    chan struct{} // answers are given when it is closed; nil: at once
	waiting int           // messages that waited for it
}

// hold delays the answers to all messages until the returned function is called, which
// may be called again.
func (a *answers) hold(t *testing.T) (release func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	held := make(chan struct{})
	a.held, a.waiting = held, 0
	release = sync.OnceFunc(func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.held = nil
		close(held)
	})
	t.Cleanup(release)
	return release
}

// await returns when a message may be answered.
func (a *answers) await() {
	a.mu.Lock()
	held := a.held
	if held != nil {
		a.waiting++
	}
	a.mu.Unlock()
	if held != nil {
		<-held
	}
}

func (a *answers) areHeld() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.held != nil
}

// holdOne holds back the answers, and returns when at least one message waits for its answer.
func (a *answers) holdOne(t *testing.T) (release func()) {
	t.Helper()
	release = a.hold(t)
	pgtest.Eventually(t, 20*time.Second, "a message waits for its answer", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.waiting > 0
	})
	return release
}

// killDuringCall kills all workers while at least one waits for the answer to a message, and
// starts others.
func (h *env) killDuringCall(a *answers, workers []*worker, settings ...string) {
	h.t.Helper()
	defer a.holdOne(h.t)()
	for i, w := range workers {
		w.kill()
		workers[i] = h.work(settings...)
	}
}

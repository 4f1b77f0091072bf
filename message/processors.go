package message

import (
	"runtime"
	"time"

	"github.com/google/uuid"

	"lemma/processors"
)

// Of the messages that the engine renders as many at a time have a processor as there are: with more,
// each would exceed MaxWait because of the others. Neither limit includes the wait for it. Texts that
// the fast path renders need none.
var rendering = processors.New()

// compiling bounds the contents that are checked or compiled at a time. Neither waits for anything else.
var compiling = processors.New()

// enter takes a slot of a workspace until leave, and the thread, whose processor time is measured.
func (s *scratch) enter(workspace uuid.UUID) {
	if s.release == nil {
		s.release = rendering.Enter(workspace)
		runtime.LockOSThread()
	}
}

// leave releases the slot.
func (s *scratch) leave() {
	if s.release != nil {
		runtime.UnlockOSThread()
		s.release()
		s.release = nil
	}
}

var started = time.Now()

func wallTime() time.Duration { return time.Since(started) }

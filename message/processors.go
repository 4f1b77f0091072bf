package message

import (
	"context"
	"runtime"
	"time"

	"github.com/google/uuid"

	"lemma/slots"
)

// processors bounds the messages that the engine renders at a time in a process: with more
// renders than processors, each would exceed MaxWait because of the others. Neither limit
// includes the wait for a slot. Texts that the fast path renders need no slot.
//
// One workspace leaves one processor to the others, and those that wait are served round robin:
// templates that take long delay messages of other workspaces for one render at most.
var processors = newProcessors(runtime.GOMAXPROCS(0))

func newProcessors(n int) *slots.Slots {
	return slots.New(slots.Limits{Process: n, Workspace: max(1, n-1)}, nil)
}

// enter takes a slot of a workspace until leave, and the thread, whose processor time is measured.
func (s *scratch) enter(workspace uuid.UUID) {
	if s.release == nil {
		s.release, _ = processors.Await(context.Background(), slots.Resource{Workspace: workspace}) // it waits for ever
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

package message

import "runtime"

// processors bounds the templates that the engine renders at a time in a process.
// MaxTime is wall-clock time: with more renders than processors, each would exceed it
// because of the others. It does not include the wait for a slot. Texts that the fast
// path renders need no slot.
var processors = make(chan struct{}, runtime.GOMAXPROCS(0))

// enter takes a slot until leave.
func (s *scratch) enter() {
	if !s.entered {
		processors <- struct{}{}
		s.entered = true
	}
}

// leave releases the slot.
func (s *scratch) leave() {
	if s.entered {
		<-processors
		s.entered = false
	}
}

package message

import "runtime"

// processors bounds how many templates the engine renders at a time in a process.
// Time to render is measured by the clock: with more renders than processors, each
// one would exceed MaxTime because of the others. The wait for a place is not part of
// that time. Texts without loops and filters do not need the engine, nor a place.
var processors = make(chan struct{}, runtime.GOMAXPROCS(0))

// enter takes a place for the rest of the try.
func (s *scratch) enter() {
	if !s.entered {
		processors <- struct{}{}
		s.entered = true
	}
}

// leave gives the place back.
func (s *scratch) leave() {
	if s.entered {
		<-processors
		s.entered = false
	}
}

package wire

import (
	"sync"
	"time"
)

// How long a slow server is not called, doubled for each slow call that follows.
const (
	firstPause = 10 * time.Second
	mostPause  = 160 * time.Second
	mostSlow   = 1024 // servers that are remembered
)

// slowServers keep servers that recipients chose from holding the calls to others. A call
// is slow when it takes half of the timeout, answered or not. After one its server is not
// called for a while, and then by one call at a time until one is fast. Nil: no server is
// remembered.
type slowServers struct {
	limit time.Duration // from here a call is slow

	mu  sync.Mutex
	all map[origin]*slowServer
}

type slowServer struct {
	pause   time.Duration
	until   time.Time // no call before
	probing bool      // the one call is under way
}

// enter returns what ends a call, or nil if none may begin. A call that its caller ended
// proves nothing about the server.
func (s *slowServers) enter(o origin) (leave func(ended bool)) {
	if s == nil {
		return func(bool) {}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	began, one := time.Now(), s.all[o]
	if one != nil && (one.probing || began.Before(one.until)) {
		return nil
	}
	if one != nil {
		one.probing = true
	}
	return func(ended bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if one != nil {
			one.probing = false
		}
		now := time.Now()
		switch {
		case now.Sub(began) >= s.limit:
			s.slow(o, now)
		case !ended:
			delete(s.all, o)
		}
	}
}

// slow records a slow call. Calls that began before its pause do not make it longer.
func (s *slowServers) slow(o origin, now time.Time) {
	one := s.all[o]
	switch {
	case one == nil && len(s.all) >= mostSlow && !s.forget(now):
		return
	case one == nil:
		one = &slowServer{}
		s.all[o] = one
	case now.Before(one.until):
		return
	}
	one.pause = max(firstPause, min(2*one.pause, mostPause))
	one.until = now.Add(one.pause)
}

// forget drops the servers that may be called again. It reports whether there were any.
func (s *slowServers) forget(now time.Time) bool {
	before := len(s.all)
	for o, one := range s.all {
		if !one.probing && !now.Before(one.until) {
			delete(s.all, o)
		}
	}
	return len(s.all) < before
}

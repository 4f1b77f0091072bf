package wire

import (
	"testing"
	"testing/synctest"
	"time"
)

// After a slow call a server is left alone, longer each time, and then called by one call
// at a time. A fast call ends that.
func TestSlowServersAreCalledLessOften(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &slowServers{limit: 2 * time.Second, all: map[origin]*slowServer{}}
		o, other := origin{"https", "slow.example:443"}, origin{"https", "fast.example:443"}
		burst := []func(bool){s.enter(o), s.enter(o), s.enter(o)}
		time.Sleep(5 * time.Second)
		for _, leave := range burst {
			leave(false)
		}
		for _, pause := range []time.Duration{10, 20, 40, 80, 160, 160} {
			time.Sleep(pause*time.Second - time.Millisecond)
			if s.enter(o) != nil {
				t.Fatalf("called within its pause of %d s", pause)
			}
			if leave := s.enter(other); leave == nil {
				t.Fatal("another server is not called")
			}
			time.Sleep(time.Millisecond)
			probe := s.enter(o)
			if probe == nil || s.enter(o) != nil {
				t.Fatalf("not one call at a time after a pause of %d s", pause)
			}
			time.Sleep(2 * time.Second)
			probe(false)
		}
		time.Sleep(160 * time.Second)
		s.enter(o)(true) // its caller ended it
		probe := s.enter(o)
		if probe == nil || s.enter(o) != nil {
			t.Fatal("a call that its caller ended changes the state of the server")
		}
		probe(false)
		for range 2 {
			if s.enter(o) == nil || len(s.all) != 0 {
				t.Error("a fast call does not end the pauses")
			}
		}
	})
}

// The servers that are remembered are bounded: strangers choose them.
func TestSlowServersAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &slowServers{limit: time.Second, all: map[origin]*slowServer{}}
		for i := range 3 * mostSlow {
			leave := s.enter(origin{"https", time.Duration(i).String()})
			if leave == nil {
				t.Fatal("a new server is not called")
			}
			time.Sleep(time.Second)
			leave(false)
		}
		if n := len(s.all); n == 0 || n > mostSlow {
			t.Errorf("%d servers are remembered, want 1 to %d", n, mostSlow)
		}
	})
}

package wire

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"testing/synctest"
	"time"
)

// After a slow call a server is left alone, longer each time, and then called by one call
// at a time. A fast call ends that.
func TestSlowServersAreCalledLessOften(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSlowServers(4 * time.Second)
		o, other := origin{"https", "slow.example:443"}, origin{"https", "fast.example:443"}
		burst := []func(ending){enter(s, o), enter(s, o), enter(s, o)}
		time.Sleep(5 * time.Second)
		for _, leave := range burst {
			leave(answered)
		}
		for _, pause := range []time.Duration{10, 20, 40, 80, 160, 160} {
			time.Sleep(pause*time.Second - time.Millisecond)
			if enter(s, o) != nil {
				t.Fatalf("called within its pause of %d s", pause)
			}
			if leave := enter(s, other); leave == nil {
				t.Fatal("another server is not called")
			}
			time.Sleep(time.Millisecond)
			probe := enter(s, o)
			if probe == nil || enter(s, o) != nil {
				t.Fatalf("not one call at a time after a pause of %d s", pause)
			}
			time.Sleep(2 * time.Second)
			probe(answered)
		}
		time.Sleep(160 * time.Second)
		enter(s, o)(left) // its caller ended it
		probe := enter(s, o)
		if probe == nil || enter(s, o) != nil {
			t.Fatal("a call that its caller ended changes the state of the server")
		}
		probe(answered)
		for range 2 {
			if enter(s, o) == nil || s.all["slow.example"] != nil {
				t.Error("a fast call does not end the pauses")
			}
		}
	})
}

// The servers that are remembered are bounded: strangers choose them. The one with the least calls in
// time is forgotten.
func TestSlowServersAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSlowServers(4 * time.Second)
		for range 3 {
			s.fast("often.example")
		}
		for i := range 3 * mostSlow {
			s.fast(fmt.Sprintf("fast%d.example", i))
			s.slow(fmt.Sprintf("slow%d.example", i), false, time.Now())
			time.Sleep(firstPause / mostSlow * 2)
		}
		if n := len(s.all); n == 0 || n > mostSlow {
			t.Errorf("%d slow servers are remembered, want 1 to %d", n, mostSlow)
		}
		if n := len(s.credits); n != mostSlow || s.credits["often.example"] != 3 {
			t.Errorf("%d fast servers are remembered, want %d; %d calls of one in time, want 3", n, mostSlow, s.credits["often.example"])
		}
	})
}

// The hosts of a domain are one server: names of it cost nothing.
func TestServersAreDomains(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"fcm.googleapis.com:443": "googleapis.com", "Evil.Example.:8443": "evil.example", "a.b.evil.co.uk:443": "evil.co.uk",
		"n1.someone.duckdns.org:443": "duckdns.org", "bucket.s3.dualstack.us-east-1.amazonaws.com:443": "amazonaws.com",
		"192.0.2.1:443": "192.0.2.1", "[2001:db8::1]:8443": "2001:db8::/48", "10.0.0.1:443": "10.0.0.1:443",
		"[::ffff:192.0.2.1]:9": "192.0.2.1", "localhost:443": "localhost",
	} {
		if got := serverOf(origin{"https", address}); got != want {
			t.Errorf("%s: %s, want %s", address, got, want)
		}
	}
}

// Of a server that answers fast, one call in 20 may be slow.
func TestAFastServerMayBeSlowForOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSlowServers(6 * time.Second)
		o := origin{"https", "push.example:443"}
		end := answered
		call := func(took time.Duration) {
			leave := enter(s, o)
			if leave == nil {
				t.Fatal("the server is not called")
			}
			time.Sleep(took)
			leave(end)
		}
		for range 3 {
			for range slowCost {
				call(time.Millisecond)
			}
			call(2 * time.Second)
		}
		call(2 * time.Second)
		if enter(s, o) != nil {
			t.Error("the server is called after two slow calls in a row")
		}
		o.address = "other.example:443"
		for range mostCredit {
			call(time.Millisecond)
		}
		call(5 * time.Second) // answered
		end = failed
		call(3 * time.Second)
		if enter(s, o) != nil {
			t.Error("a server that hangs is called again at once")
		}
	})
}

// A call that fails at once is no answer: hosts that refuse connections today and hang tomorrow stay
// strangers.
func TestFailedCallsAreNoCredit(t *testing.T) {
	t.Parallel()
	s := newSlowServers(6 * time.Second)
	o := origin{"https", "push.example:443"}
	enter(s, o)(failed)
	enter(s, o)(left)
	if len(s.credits) > 0 {
		t.Errorf("credits %v", s.credits)
	}
	s.judge("other.example", answered, time.Millisecond, time.Now())
	s.judge("push.example", failed, 2*time.Second, time.Now())
	if enter(s, o) != nil {
		t.Error("a server whose call failed slowly is called at once")
	}
	s.all["push.example"].until = time.Now()
	enter(s, o)(failed)
	if enter(s, o) == nil || enter(s, o) != nil {
		t.Error("a failed probe ends the calls one at a time, or prevents them")
	}
}

// TestRefusedCallsAreNoCredit calls a server that refuses connections, and one that answers.
func TestRefusedCallsAreNoCredit(t *testing.T) {
	t.Parallel()
	c := New(Options{Operator: Operator{AllowPrivate: true, AllowStrange: true}, Strange: true})
	t.Cleanup(c.Close)
	answers := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(answers.Close)
	refuses := httptest.NewServer(http.NotFoundHandler())
	refuses.Close()
	for at, want := range map[string]int{answers.URL: 1, refuses.URL: 0} {
		u, _ := url.Parse(at)
		u.Path = "/"
		_, none := c.Post(t.Context(), Request{URL: u, Header: http.Header{}, Body: []byte("x")})
		if got := c.slow.credits[serverOf(originOf(u))]; got != want {
			t.Errorf("%s has %d credits, want %d: %+v", at, got, want, none)
		}
	}
}

// From when a call is slow depends on the others, so that a slow line makes no server slow.
func TestSlowIsSlowerThanOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for usual, slow := range map[time.Duration]time.Duration{
			time.Millisecond: 2 * time.Second, 400 * time.Millisecond: 3200 * time.Millisecond, 3 * time.Second: 15 * time.Second,
		} {
			s := newSlowServers(30 * time.Second)
			for range 1000 {
				leave := enter(s, origin{"https", "push.example:443"})
				time.Sleep(usual)
				leave(answered)
			}
			for took, paused := range map[time.Duration]bool{slow * 8 / 10: false, slow * 14 / 10: true} {
				other := origin{"https", took.String() + ".example:443"}
				leave := enter(s, other)
				time.Sleep(took)
				leave(answered)
				if (enter(s, other) == nil) != paused {
					t.Errorf("calls take %s: one of %s makes its server slow: %t, want %t", usual, took, !paused, paused)
				}
			}
		}
	})
}

// Strangers register domains. After slow calls to several, those that never answered in time are called
// one at a time, with pauses that double; others are called as before. After a time without such a call
// all are called again.
func TestManySlowServersAreOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSlowServers(10 * time.Second)
		known, domains := origin{"https", "push.example:443"}, 0
		enter(s, known)(answered)
		stranger := func() func(ending) {
			domains++
			return enter(s, origin{"https", fmt.Sprintf("d%d.example:443", domains)})
		}
		hang := func(leave func(ending)) {
			time.Sleep(5 * time.Second)
			leave(answered)
		}
		for range mostSlowed {
			hang(stranger())
		}
		burst := []func(ending){stranger(), stranger(), stranger()}
		time.Sleep(5 * time.Second)
		for _, leave := range burst {
			leave(answered)
		}
		for _, pause := range []time.Duration{10, 20, 40, 80, 160, 160} {
			time.Sleep(pause*time.Second - time.Millisecond)
			if stranger() != nil {
				t.Fatalf("a stranger is called within the pause of %d s", pause)
			}
			enter(s, known)(answered)
			time.Sleep(time.Millisecond)
			one := stranger()
			if one == nil || stranger() != nil {
				t.Fatalf("not one stranger at a time after a pause of %d s", pause)
			}
			hang(one)
		}
		time.Sleep(160 * time.Second)
		newcomer := origin{"https", "new.example:443"}
		enter(s, newcomer)(answered)
		one := stranger()
		if enter(s, newcomer) == nil || one == nil || stranger() != nil {
			t.Error("a server that answered in time still counts as a stranger, or others do not")
		}
		one(left)
		time.Sleep(mostPause + time.Second)
		for range 2 {
			if stranger() == nil {
				t.Error("strangers are still called one at a time")
			}
		}
	})
}

func enter(s *slowServers, o origin) func(ending) {
	leave, _ := s.enter(o, false)
	return leave
}

// Windows to slow servers only are one at a time, so that a slot of the provider stays for others.
func TestWindowsToSlowServers(t *testing.T) {
	t.Parallel()
	s := newSlowServers(6 * time.Second)
	if !s.enterAlone() || s.enterAlone() {
		t.Error("not one at a time")
	}
	s.leaveAlone()
	if !s.enterAlone() {
		t.Error("none after the first")
	}
}

package wire

import (
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/publicsuffix"
)

// How long a slow server is not called, doubled for each slow call that follows.
const (
	firstPause = 10 * time.Second
	mostPause  = 160 * time.Second
	leastWait  = time.Second
	mostSlow   = 1024 // servers that are remembered: as many slow ones, and as many that answered in time
)

// From when a call is slow: it takes so many times as long as others, and at least so long.
const (
	slowTimes = 8
	leastSlow = 2 * time.Second // several round trips over a slow line, with TLS
)

// A call in time is a credit of its server, and a slow one costs 20: of a server that answers fast,
// one call in 20 may be slow, but none may hang.
const (
	slowCost   = 20
	mostCredit = 10 * slowCost
)

// mostSlowed is how many servers may be slow before all that never answered in time are one server.
const mostSlowed = 4

// mostAlone is how many windows may have calls to slow servers only: to a push service for most recipients
// that answers late, sending goes on. Each holds a slot of the provider, of which a slow one has two for
// direct notifications: one stays for others.
const mostAlone = 1

// slowServers keep servers that recipients chose from holding the calls to others. After a slow call,
// answered or not, its server is not called for a while, and then by one call at a time until one is
// fast; if it was answered, also by windows of their own. The hosts of one domain are one server, since
// everybody may invent names in a domain of their own. After slow calls to several servers that never
// answered in time, all others that never did are one server as well. Nil: no server is remembered.
type slowServers struct {
	most time.Duration // from here a call is slow in any case

	mu      sync.Mutex
	usual   time.Duration // a moving average of the calls
	all     map[string]*slowServer
	credits map[string]int // of servers that answered in time
	slowed  int            // how many servers became slow
	alone   int            // windows
}

type slowServer struct {
	pause   time.Duration
	until   time.Time // no call before
	probing bool      // the one call is under way
	answers bool      // late
}

// strangers is the name of all servers without a credit.
const strangers = ""

func newSlowServers(timeout time.Duration) *slowServers {
	return &slowServers{most: timeout / 2, all: map[string]*slowServer{}, credits: map[string]int{}}
}

// ending is how a call ended.
type ending int

const (
	answered ending = iota // by the server
	failed                 // without an answer: that it was in time proves nothing
	left                   // by its caller, which proves nothing about the server
)

// enter returns what ends a call, or else the time after which the server may be called. alone: no
// other servers are called in the window.
func (s *slowServers) enter(o origin, alone bool) (leave func(ending), wait time.Duration) {
	if s == nil {
		return func(ending) {}, 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	server, began := serverOf(o), time.Now()
	one := s.find(server, began)
	probes := one != nil && (!alone || !one.answers)
	if probes && (one.probing || began.Before(one.until)) {
		return nil, one.wait(began)
	}
	if probes {
		one.probing = true
	}
	return func(end ending) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if probes {
			one.probing = false
		}
		now := time.Now()
		took := now.Sub(began)
		if end != left || took >= s.most {
			s.judge(server, end, took, now)
		}
	}, 0
}

// wait is how long the server is left alone: one that answers late, until there is a window for it.
func (one *slowServer) wait(now time.Time) time.Duration {
	if one.answers {
		return leastWait
	}
	return max(leastWait, one.until.Sub(now))
}

// enterAlone takes a window for calls to slow servers only.
func (s *slowServers) enterAlone() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.alone >= mostAlone {
		return false
	}
	s.alone++
	return true
}

func (s *slowServers) leaveAlone() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.alone--
}

// find returns what is remembered of a server, nil if it may be called.
func (s *slowServers) find(server string, now time.Time) *slowServer {
	all := s.all[strangers]
	if all != nil && !all.probing && now.Sub(all.until) > mostPause {
		delete(s.all, strangers)
		all, s.slowed = nil, 0
	}
	if one := s.all[server]; one != nil || s.credits[server] > 0 {
		return one
	}
	return all
}

// judge records how long a call took.
func (s *slowServers) judge(server string, end ending, took time.Duration, now time.Time) {
	if s.usual == 0 {
		s.usual = took
	}
	s.usual += (took - s.usual) / 64
	switch {
	case took < min(s.most, max(leastSlow, slowTimes*s.usual)):
		if end == answered {
			s.fast(server)
		}
	case (took < s.most || end == answered) && s.credits[server] >= slowCost: // one that hangs is slow at once
		s.credits[server] -= slowCost
	default:
		delete(s.credits, server)
		another := s.all[server] == nil
		s.slow(server, end == answered, now)
		if another {
			s.another(end == answered, now)
		}
	}
}

// fast gives a server its credit. For one too many, that with the least loses its own.
func (s *slowServers) fast(server string) {
	delete(s.all, server)
	if _, known := s.credits[server]; !known && len(s.credits) >= mostSlow {
		least := server
		for other, credit := range s.credits {
			if least == server || credit < s.credits[least] {
				least = other
			}
		}
		delete(s.credits, least)
	}
	s.credits[server] = min(s.credits[server]+1, mostCredit)
}

// another follows the first slow call of a server.
func (s *slowServers) another(answers bool, now time.Time) {
	if s.slowed++; s.slowed > mostSlowed {
		s.slow(strangers, answers, now)
	}
}

// slow records a slow call. Calls that began before its pause do not make it longer.
func (s *slowServers) slow(server string, answers bool, now time.Time) {
	one := s.all[server]
	if one != nil && !answers {
		one.answers = false
	}
	switch {
	case one == nil && len(s.all) >= mostSlow && !s.forget(now):
		return
	case one == nil:
		one = &slowServer{}
		s.all[server] = one
	case now.Before(one.until):
		return
	}
	one.answers = answers
	one.pause = max(firstPause, min(2*one.pause, mostPause))
	one.until = now.Add(one.pause)
}

// forget drops the servers that may be called again. It reports whether there were any.
func (s *slowServers) forget(now time.Time) bool {
	before := len(s.all)
	for o, one := range s.all {
		if o != strangers && !one.probing && !now.Before(one.until) {
			delete(s.all, o)
		}
	}
	return len(s.all) < before
}

// serverOf is the domain of a host that can be registered under a public suffix, or the address of
// a host without a name, whatever its port; of IPv6 the network of one site (/48, RFC 6177). Private
// addresses are the operator's, where each port may be another service. The suffixes are those of registries only: names in the domains of
// services for all (the private ones of https://publicsuffix.org) cost as little as hosts.
func serverOf(o origin) string {
	host, _, err := net.SplitHostPort(o.address)
	if err != nil {
		return o.address
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		if ip = ip.Unmap(); ip.IsLoopback() || ip.IsPrivate() {
			return o.address
		}
		return siteOf(ip)
	}
	labels := strings.Split(strings.ToLower(strings.TrimSuffix(host, ".")), ".")
	for n := len(labels) - 2; n >= 0; n-- {
		domain := strings.Join(labels[n:], ".")
		if suffix, registry := publicsuffix.PublicSuffix(domain); suffix != domain || !registry {
			return domain
		}
	}
	return strings.Join(labels, ".")
}

func siteOf(ip netip.Addr) string {
	if site, err := ip.Prefix(48); err == nil && ip.Is6() {
		return site.String()
	}
	return ip.String()
}

package chaos

import (
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"lemma/dev/catcher"
)

// mailServer is the mail server. It counts every complete body that it receives, kept
// or not, answered or not.
type mailServer struct {
	*catcher.Catcher
	answers
	folder string // of the ledger, which is kept over restarts
	keep   int    // messages that are kept with their content

	mu       sync.Mutex
	bodies   map[string]int // by Message-ID
	deferred map[string]int // bodies answered with 4xx, which count as no attempt
	reached  map[string]int // how often a stage was reached for a recipient
	delay    time.Duration  // of the answer to each body
	faults   func(e catcher.Event, again int) catcher.Fault
}

func startMailServer(t *testing.T) *mailServer {
	t.Helper()
	p := &mailServer{folder: t.TempDir(), keep: 1, bodies: map[string]int{}, deferred: map[string]int{}, reached: map[string]int{},
		faults: func(catcher.Event, int) catcher.Fault { return catcher.Fault{} }}
	var err error
	p.Catcher, err = catcher.Start(catcher.Options{SMTP: freeAddress(t), Keep: p.keep, Faults: p.fault, Folder: p.folder})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// fault returns the test's fault for the n-th visit of a stage by a recipient, from 1.
func (p *mailServer) fault(e catcher.Event) catcher.Fault {
	f := p.decide(e)
	if e.Stage == catcher.Dot {
		await(p.arrive())
	}
	return f
}

func (p *mailServer) decide(e catcher.Event) catcher.Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := strconv.Itoa(int(e.Stage)) + e.Recipient
	p.reached[at]++
	f := p.faults(e, p.reached[at])
	if e.Stage != catcher.Dot {
		return f
	}
	f.Delay += p.delay
	id := notificationIn(e.MessageID)
	p.bodies[id]++
	if strings.HasPrefix(f.Reply, "4") {
		p.deferred[id]++
	}
	return f
}

// stop closes every connection and the port until restart.
func (p *mailServer) stop() {
	p.Close()
}

// stopDuringCalls is stop while messages wait for their answers. release gives them.
func (p *mailServer) stopDuringCalls(release func()) {
	closed := make(chan struct{})
	go func() { p.Close(); close(closed) }()
	for {
		conn, err := net.Dial("tcp", p.Addr())
		if err != nil {
			break
		}
		_ = conn.Close()
	}
	release()
	<-closed
}

func (p *mailServer) restart(t *testing.T) {
	t.Helper()
	restarted, err := catcher.Start(catcher.Options{SMTP: p.Addr(), Keep: p.keep, Faults: p.fault, Folder: p.folder})
	if err != nil {
		t.Fatal(err)
	}
	p.Catcher = restarted
}

// keepAll restarts the server, which then keeps n messages with their content.
func (p *mailServer) keepAll(t *testing.T, n int) {
	t.Helper()
	p.keep = n
	p.stop()
	p.restart(t)
}

// slow delays the answer to every body.
func (p *mailServer) slow(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

func (p *mailServer) setFaults(faults func(e catcher.Event, again int) catcher.Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = faults
}

func (p *mailServer) port() int {
	_, port, _ := net.SplitHostPort(p.Addr())
	n, _ := strconv.Atoi(port)
	return n
}

// received is how many messages the server has.
func (p *mailServer) received() int { return p.Stats().Messages }

// delivered is part of carrier.
func (p *mailServer) delivered() (all []delivery) {
	for _, e := range p.Ledger() {
		all = append(all, delivery{notificationIn(e.MessageID), e.Recipient})
	}
	return all
}

// requests counts the bodies of one notification.
func (p *mailServer) requests(id string) (bodies, deferred int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bodies[id], p.deferred[id]
}

// notificationIn extracts the id of the notification from a Message-ID.
func notificationIn(messageID string) string {
	id, _, _ := strings.Cut(strings.TrimPrefix(messageID, "<"), "@")
	return id
}

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

// post is the mail server, with a count of its own of what came over the wire:
// every body that ended in its dot, kept or not, answered or not.
type post struct {
	*catcher.Catcher
	folder string // the ledger's, which outlives a catcher

	mu         sync.Mutex
	bodies     map[string]int // by Message-ID
	turnedDown map[string]int // those that were answered with 4xx: they spend no attempt
	met        map[string]int // how often a stage was reached for a recipient
	pace       time.Duration  // for each body
	silent     chan struct{}  // each body is answered when it is closed; nil: at once
	faults     func(e catcher.Event, again int) catcher.Fault
}

func openPost(t *testing.T) *post {
	t.Helper()
	p := &post{folder: t.TempDir(), bodies: map[string]int{}, turnedDown: map[string]int{}, met: map[string]int{},
		faults: func(catcher.Event, int) catcher.Fault { return catcher.Fault{} }}
	var err error
	p.Catcher, err = catcher.Start(catcher.Options{Keep: 1, Faults: p.fault, Folder: p.folder})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// fault asks the test's script, tells it how often this recipient has come to
// this stage (from 1), and counts.
func (p *post) fault(e catcher.Event) catcher.Fault {
	f, silent := p.decide(e)
	if silent != nil {
		<-silent
	}
	return f
}

func (p *post) decide(e catcher.Event) (catcher.Fault, chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := strconv.Itoa(int(e.Stage)) + e.Recipient
	p.met[at]++
	f := p.faults(e, p.met[at])
	if e.Stage != catcher.Dot {
		return f, nil
	}
	f.Delay += p.pace
	id := notificationIn(e.MessageID)
	p.bodies[id]++
	if strings.HasPrefix(f.Reply, "4") {
		p.turnedDown[id]++
	}
	return f, p.silent
}

// goAway closes every connection and the port, until the server comes back.
func (p *post) goAway() {
	p.Close()
}

func (p *post) comeBack(t *testing.T) {
	t.Helper()
	back, err := catcher.Start(catcher.Options{SMTP: p.Addr(), Keep: 1, Faults: p.fault, Folder: p.folder})
	if err != nil {
		t.Fatal(err)
	}
	p.Catcher = back
}

// keepSilent has no body answered until the returned function is called, which
// may be called again.
func (p *post) keepSilent(t *testing.T) (speak func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	silent := make(chan struct{})
	p.silent = silent
	speak = sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.silent = nil
		close(silent)
	})
	t.Cleanup(speak)
	return speak
}

// slow makes every body take a while.
func (p *post) slow(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pace = d
}

func (p *post) misbehave(faults func(e catcher.Event, again int) catcher.Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = faults
}

func (p *post) port() int {
	_, port, _ := net.SplitHostPort(p.Addr())
	n, _ := strconv.Atoi(port)
	return n
}

// taken says how many mails there are so far.
func (p *post) taken() int { return p.Stats().Messages }

// onTheWire counts what came for one notification.
func (p *post) onTheWire(id string) (bodies, turnedDown int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bodies[id], p.turnedDown[id]
}

// notificationIn takes our id out of a Message-ID.
func notificationIn(messageID string) string {
	id, _, _ := strings.Cut(strings.TrimPrefix(messageID, "<"), "@")
	return id
}

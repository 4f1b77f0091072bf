package smtp

import (
	"context"
	"errors"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"

	"lemma/dial"
	"lemma/sender/mime"
)

// How long connections and failures are kept.
const (
	idleFor      = 30 * time.Second       // then an unused connection is closed
	firstBackoff = 50 * time.Millisecond  // after a failed dial, doubled for each that follows
	mostBackoff  = 400 * time.Millisecond // the circuit of package sender waits longer, on all processes
	quitTime     = time.Second            // for the answer to QUIT
	dismissTime  = 100 * time.Millisecond // to close a connection for another one
)

// mostDraft is the largest buffer of a message that an idle line keeps.
const mostDraft = 64 << 10

// line is a slot of the pool: at most one connection, and the buffers for messages.
// One call to Send uses it at a time.
type line struct {
	conn   *session // nil when there is none
	writer mime.Writer
	drafts [2]draft
	since  time.Time // when it became idle
	idle   dial.IdleConn
}

// pool keeps idle lines. Its channel bounds how many are in use, and idle how many are idle
// with those of other pools.
type pool struct {
	slots     chan struct{}
	idle      *dial.Idle
	workspace uuid.UUID

	mu      sync.Mutex
	resting []*line // the last is used first, so that the others can be closed
	sweeper *time.Timer
	closed  bool

	failures int       // dials in a row that failed
	cause    *refusal  // of the last of them
	until    time.Time // no dial before
}

func newPool(most int, idle *dial.Idle) *pool {
	return &pool{slots: make(chan struct{}, most), idle: idle}
}

// take waits for a line. It returns nil when ctx ends first.
func (p *pool) take(ctx context.Context) *line {
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return nil
	}
	if l := p.rested(); l != nil {
		return l
	}
	l := &line{}
	l.idle = dial.IdleConn{Workspace: p.workspace, Close: func() { p.dismiss(l) }}
	return l
}

func (p *pool) rested() *line {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.resting)
	if n == 0 {
		return nil
	}
	l := p.resting[n-1]
	p.resting = p.resting[:n-1]
	p.idle.Remove(&l.idle)
	return l
}

// give returns a line. Beyond the bound of idle lines another one is closed for it.
func (p *pool) give(l *line) {
	l.since = time.Now()
	l.trim()
	surplus := p.rest(l)
	<-p.slots
	surplus()
}

// rest keeps a line, and returns what closes the one that is too many.
func (p *pool) rest(l *line) (surplus func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return l.quit
	}
	p.resting = append(p.resting, l)
	if p.sweeper == nil {
		p.sweeper = time.AfterFunc(idleFor, func() { p.sweep(time.Now()) })
	}
	return p.idle.Add(&l.idle) // one without a connection counts too, for its buffers
}

// dismiss closes a line that is still idle, for another one. That may be of another
// workspace, so it does not wait for the server.
func (p *pool) dismiss(l *line) {
	p.mu.Lock()
	n := slices.Index(p.resting, l)
	if n >= 0 {
		p.resting = slices.Delete(p.resting, n, n+1)
		p.idle.Remove(&l.idle)
	}
	p.mu.Unlock()
	if n >= 0 && l.conn != nil {
		l.conn.dismiss()
	}
}

// sweep closes lines that were idle for long, and runs again while there are others.
func (p *pool) sweep(now time.Time) {
	p.mu.Lock()
	n := 0
	for n < len(p.resting) && now.Sub(p.resting[n].since) >= idleFor {
		n++
	}
	old := p.resting[:n:n]
	p.resting = append([]*line(nil), p.resting[n:]...)
	p.forget(old)
	p.sweeper = nil
	if len(p.resting) > 0 && !p.closed {
		p.sweeper = time.AfterFunc(idleFor/2, func() { p.sweep(time.Now()) })
	}
	p.mu.Unlock()
	quitAll(old)
}

func (p *pool) close() {
	p.mu.Lock()
	rest := p.resting
	p.resting, p.closed = nil, true
	p.forget(rest)
	if p.sweeper != nil {
		p.sweeper.Stop()
	}
	p.mu.Unlock()
	quitAll(rest)
}

// quitAll closes lines at the same time, so that one server delays no other.
func quitAll(lines []*line) {
	var all sync.WaitGroup
	for _, l := range lines {
		all.Go(l.quit)
	}
	all.Wait()
}

// forget counts lines as idle no more.
func (p *pool) forget(lines []*line) {
	for _, l := range lines {
		p.idle.Remove(&l.idle)
	}
}

// backoff returns the cause of the last failed dial while the next one must wait, and
// nil otherwise.
func (p *pool) backoff(now time.Time) *refusal {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Before(p.until) {
		return p.cause
	}
	return nil
}

// dialed records a dial that began at that time. Only dials that began after the last
// back-off lengthen it.
func (p *pool) dialed(began time.Time, r *refusal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case r == nil:
		p.failures, p.until, p.cause = 0, time.Time{}, nil
	case !began.Before(p.until):
		p.until, p.cause = time.Now().Add(min(firstBackoff<<min(p.failures, 20), mostBackoff)), r
		p.failures++
	}
}

// hangUp closes a line's connection without QUIT.
func (l *line) hangUp() {
	if l.conn != nil {
		l.conn.hangUp() // there is nothing to send any more
		l.conn = nil
	}
}

// trim leaves large buffers of messages to the garbage collector.
func (l *line) trim() {
	for i := range l.drafts {
		if d := &l.drafts[i]; cap(d.mail) > mostDraft {
			d.mail = nil
		}
	}
}

func (l *line) quit() {
	if l.conn != nil {
		l.conn.quit()
		l.conn = nil
	}
}

// alive checks, without waiting, that an idle connection is open and has received
// nothing. One that the server has closed, or on which it has sent 421, is not used.
func (s *session) alive() bool {
	if s.pending() > 0 {
		return false
	}
	conn, ok := beneath(s.conn).(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	silent := false
	err = raw.Control(func(fd uintptr) {
		var one [1]byte
		_, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		silent = errors.Is(err, syscall.EAGAIN)
	})
	return err == nil && silent
}

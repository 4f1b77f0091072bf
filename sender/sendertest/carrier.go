// Package sendertest is only for tests. Conformance checks what package sender
// requires of a carrier, and Carrier is a scripted carrier that counts its calls.
package sendertest

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"strings"
	"sync"
	"time"

	"lemma/sender"
)

// Carrier is a scripted carrier. The zero value accepts everything. Set its fields
// before its first use.
type Carrier struct {
	Name         string // of its kind; "scripted" when empty
	Capabilities sender.Capabilities

	// Script returns the receipt of a call; call is the number of the call for this
	// notification, from 1. A receipt without an outcome is Accepted; without a time,
	// now.
	Script func(m sender.Message, call int) sender.Receipt
	// Before runs before a call, After between the call and its answer. A Gate's Stop
	// fits both.
	Before, After func(ctx context.Context, m sender.Message)
	// Calls counts the calls; the carrier's own when nil.
	Calls *Calls

	once   sync.Once
	mu     sync.Mutex
	closed int
}

// Kind is a kind whose accounts all get this carrier.
func (c *Carrier) Kind() sender.Kind {
	name := c.Name
	if name == "" {
		name = "scripted"
	}
	return sender.Kind{Name: name, Capabilities: c.Capabilities, Open: func(sender.Account) (sender.Carrier, error) { return c, nil }}
}

// Send runs the script. After the end of ctx, messages that were not called are
// NotCalled, and one that was called is Unknown.
func (c *Carrier) Send(ctx context.Context, messages []sender.Message) []sender.Receipt {
	receipts := make([]sender.Receipt, len(messages))
	for i, m := range messages {
		receipts[i] = c.call(ctx, m)
	}
	return receipts
}

func (c *Carrier) call(ctx context.Context, m sender.Message) sender.Receipt {
	if c.Before != nil && ctx.Err() == nil {
		c.Before(ctx, m)
	}
	end, ok := ctx.Deadline()
	if ctx.Err() != nil || ok && !time.Now().Before(end) || !m.StartBy.IsZero() && !time.Now().Before(m.StartBy) {
		return sender.Receipt{Outcome: sender.NotCalled, Reason: "call_ended", At: time.Now()}
	}
	n := c.Made().add(m)
	if c.After != nil {
		c.After(ctx, m)
	}
	if ctx.Err() != nil {
		return sender.Receipt{Outcome: sender.Unknown, Reason: "call_ended", At: time.Now()}
	}
	return c.answer(m, n)
}

func (c *Carrier) answer(m sender.Message, call int) sender.Receipt {
	var r sender.Receipt
	if c.Script != nil {
		r = c.Script(m, call)
	}
	if r.Outcome == "" {
		r.Outcome = sender.Accepted
	}
	if r.Outcome == sender.Accepted && r.CarrierID == "" {
		r.CarrierID = fmt.Sprintf("%s/%d", m.Notification, call)
	}
	if r.At.IsZero() {
		r.At = time.Now()
	}
	return r
}

// Close counts its calls.
func (c *Carrier) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed++
}

// Closed is how often Close was called.
func (c *Carrier) Closed() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// Made is the count of the calls made so far.
func (c *Carrier) Made() *Calls {
	c.once.Do(func() {
		if c.Calls == nil {
			c.Calls = &Calls{}
		}
	})
	return c.Calls
}

// Calls counts calls by notification. With a file it outlives its process, and
// processes that share the file share the count: a call is written before it is
// answered, so a kill loses none.
type Calls struct {
	path string

	mu   sync.Mutex
	n    map[string]int
	file *os.File
	read int64 // bytes of the file that are counted in n
}

// CallsIn counts in a file.
func CallsIn(path string) *Calls { return &Calls{path: path} }

// Of is how often a notification was called.
func (c *Calls) Of(notification string) int { return c.All()[notification] }

// All is how often each notification was called.
func (c *Calls) All() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.catchUp()
	return maps.Clone(c.n)
}

// add counts a call and returns its number for the notification.
func (c *Calls) add(m sender.Message) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.catchUp()
	if c.file == nil {
		c.n[m.Notification]++
		return c.n[m.Notification]
	}
	// One write, at the end: lines of several processes do not mix.
	if _, err := fmt.Fprintf(c.file, "%s\t%d\n", m.Notification, m.Attempt); err != nil {
		panic(fmt.Sprintf("count a call: %v", err))
	}
	c.catchUp()
	return c.n[m.Notification]
}

// catchUp counts what was written since the last catchUp.
func (c *Calls) catchUp() {
	if c.n == nil {
		c.n = map[string]int{}
	}
	if c.path == "" {
		return
	}
	if c.file == nil {
		file, err := os.OpenFile(c.path, os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			panic(fmt.Sprintf("open the calls: %v", err))
		}
		c.file = file
	}
	raw, err := io.ReadAll(io.NewSectionReader(c.file, c.read, math.MaxInt64-c.read))
	if err != nil {
		panic(fmt.Sprintf("read the calls: %v", err))
	}
	for line := range strings.Lines(string(raw)) {
		if id, _, ok := strings.Cut(line, "\t"); ok {
			c.n[id]++
		}
	}
	c.read += int64(len(raw))
}

// Gate stops callers until a test releases them.
type Gate struct {
	Arrived chan sender.Message // receives each caller
	Pass    chan struct{}       // releases one caller by value, and all when it is closed
}

// NewGate makes a closed gate.
func NewGate() *Gate {
	return &Gate{Arrived: make(chan sender.Message), Pass: make(chan struct{})}
}

// Stop waits for a receiver of Arrived and then for Pass, or for the end of ctx.
func (g *Gate) Stop(ctx context.Context, m sender.Message) {
	select {
	case g.Arrived <- m:
	case <-g.Pass:
		return
	case <-ctx.Done():
		return
	}
	select {
	case <-g.Pass:
	case <-ctx.Done():
	}
}

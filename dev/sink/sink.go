// Package sink is an SMTP server for benchmarks, and one for SendEmail of Amazon SES and for webhooks. It accepts every
// message and stores none, at almost no cost. It counts for each numbered recipient whether it got no message, one or
// several, and webhooks by their id.
//
// The number is the digits in the local part: user123@example.test is 123.
// A message to a recipient without digits is only counted in the total.
//
// It implements only as much SMTP as a correct client needs, without any checks. Two
// commands are its own: XSTAT <from> <to> returns the counts as one line of JSON, and
// XRESET sets them to zero. It should run in a process of its own, so that its CPU
// time is not counted as the client's.
package sink

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Stats are the counts of a sink.
type Stats struct {
	Messages   int64   `json:"messages"`   // final dots
	Distinct   int64   `json:"distinct"`   // numbers and ids with at least one message
	Duplicates int64   `json:"duplicates"` // further messages to a number or of an id
	Missing    int64   `json:"missing"`    // numbers in the requested range without a message
	Bytes      int64   `json:"bytes"`      // of content
	Seconds    float64 `json:"seconds"`    // from the first message to the last
}

// Run serves until ctx ends, then writes its stats to out as one line of JSON,
// with Missing for the numbers up to the highest seen. On each of web it serves Amazon SES
// and webhooks.
func Run(ctx context.Context, listener net.Listener, out io.Writer, web ...net.Listener) error {
	s := &sink{started: time.Now(), open: map[net.Conn]struct{}{}}
	s.reset()
	stop := context.AfterFunc(ctx, func() {
		_ = listener.Close()
		s.hangUp()
	})
	defer stop()
	var all sync.WaitGroup
	for _, l := range web {
		all.Go(func() { s.serveWeb(ctx, l) })
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			all.Wait()
			if ctx.Err() == nil {
				return fmt.Errorf("accept: %w", err)
			}
			c := s.counts.Load()
			return json.NewEncoder(out).Encode(s.stats(1, c.highest.Load()))
		}
		if s.admit(conn) {
			all.Go(func() { s.serve(conn) })
		}
	}
}

// Ask reads the stats of the sink at an address. Missing counts the numbers
// from first to last, both included.
func Ask(address string, first, last int64) (Stats, error) {
	var s Stats
	line, err := command(address, fmt.Sprintf("XSTAT %d %d", first, last))
	if err != nil {
		return s, fmt.Errorf("ask the sink: %w", err)
	}
	return s, json.Unmarshal([]byte(line), &s)
}

// Reset sets the counts of the sink at an address to zero.
func Reset(address string) error {
	if _, err := command(address, "XRESET"); err != nil {
		return fmt.Errorf("reset the sink: %w", err)
	}
	return nil
}

func command(address, line string) (string, error) {
	conn, err := textproto.Dial("tcp", address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if _, err = conn.ReadLine(); err != nil {
		return "", err
	}
	if err = conn.PrintfLine("%s", line); err != nil {
		return "", err
	}
	answer, err := conn.ReadLine()
	text, ok := strings.CutPrefix(answer, "250 ")
	if err == nil && !ok {
		err = fmt.Errorf("it replies %q", answer)
	}
	return text, err
}

type sink struct {
	started time.Time
	counts  atomic.Pointer[counts]

	mu     sync.Mutex
	open   map[net.Conn]struct{}
	closed bool
}

// counts are replaced as a whole by a reset.
type counts struct {
	messages, distinct, duplicates, bytes, highest atomic.Int64
	first, last                                    atomic.Int64 // ns since the sink started; first is 0 until a message came
	seen                                           [chunks]atomic.Pointer[chunk]
	ids                                            sync.Map // of webhooks
}

// A number is a bit in a chunk of a million; numbers beyond the last chunk are
// counted as messages alone.
const (
	chunkBits = 20
	chunks    = 1 << 10
)

type chunk [1 << (chunkBits - 6)]uint64

func (s *sink) reset() { s.counts.Store(&counts{}) }

// arrived counts one message in total.
func (s *sink) arrived(size int) *counts {
	c := s.counts.Load()
	now := int64(time.Since(s.started)) + 1
	c.first.CompareAndSwap(0, now)
	c.last.Store(now)
	c.messages.Add(1)
	c.bytes.Add(int64(size))
	return c
}

// takeID counts one webhook.
func (s *sink) takeID(id string, size int) {
	c := s.arrived(size)
	if _, known := c.ids.LoadOrStore(id, true); known {
		c.duplicates.Add(1)
	} else {
		c.distinct.Add(1)
	}
}

// take counts one message. number is negative when the recipient has none.
func (s *sink) take(number int64, size int) {
	c := s.arrived(size)
	if number < 0 || number >= chunks<<chunkBits {
		return
	}
	if c.record(number) {
		c.distinct.Add(1)
	} else {
		c.duplicates.Add(1)
	}
	for high := c.highest.Load(); number > high && !c.highest.CompareAndSwap(high, number); high = c.highest.Load() {
	}
}

// record reports whether the number was not recorded before.
func (c *counts) record(number int64) bool {
	slot := &c.seen[number>>chunkBits]
	if slot.Load() == nil {
		slot.CompareAndSwap(nil, new(chunk))
	}
	word, bit := number&(1<<chunkBits-1)>>6, uint64(1)<<(number&63)
	return atomic.OrUint64(&slot.Load()[word], bit)&bit == 0
}

func (c *counts) recorded(number int64) bool {
	if number < 0 || number >= chunks<<chunkBits {
		return false
	}
	chunk := c.seen[number>>chunkBits].Load()
	return chunk != nil && atomic.LoadUint64(&chunk[number&(1<<chunkBits-1)>>6])>>(number&63)&1 == 1
}

func (s *sink) stats(first, last int64) Stats {
	c := s.counts.Load()
	missing := int64(0)
	for n := first; n <= last; n++ {
		if !c.recorded(n) {
			missing++
		}
	}
	return Stats{
		Messages: c.messages.Load(), Distinct: c.distinct.Load(), Duplicates: c.duplicates.Load(), Missing: missing,
		Bytes: c.bytes.Load(), Seconds: time.Duration(c.last.Load() - c.first.Load()).Seconds(),
	}
}

// admit is false once the sink is closing.
func (s *sink) admit(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = conn.Close()
		return false
	}
	s.open[conn] = struct{}{}
	return true
}

func (s *sink) leave(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, conn)
	_ = conn.Close()
}

func (s *sink) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for conn := range s.open {
		_ = conn.Close()
	}
}

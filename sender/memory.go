package sender

import (
	"context"
	"errors"

	"lemma/message"
	limits "lemma/slots"
)

// memory is what the messages of one window take of Config.MessageBytes, from before
// they are rendered until they have been called. Servers that do not answer so hold a
// bounded part of the memory of a process, and of that of a workspace.
type memory struct {
	slots  *limits.Slots
	of     limits.Resource
	bytes  int // taken
	window int // Config.WindowBytes
}

const (
	largestMessage = 2*message.MaxRendered + 128<<10 // bytes, with its subject and headers
	firstMemory    = 2 * largestMessage              // what a window takes first: enough for most
	memoryStep     = 1 << 20                         // by which it grows
)

// errNoMemory means that the messages of a workspace or process take all of it.
var errNoMemory = errors.New("no memory for another window")

func newMemory(bytes int) *limits.Slots {
	bytes = max(bytes, 2*firstMemory)
	return limits.New(limits.Limits{Process: bytes, Workspace: threeQuarters(bytes)}, func(string) error { return errNoMemory })
}

// prepareWindow reads the data of the next window and takes memory for its messages. With
// an error the batch is given back.
func (s *Sender) prepareWindow(ctx context.Context, c *claim) error {
	if err := s.readPayloads(ctx, c); err != nil {
		return err
	}
	return s.reserve(ctx, c)
}

// reserve takes memory for a window of the claim, or returns errNoMemory after slots.Wait.
func (s *Sender) reserve(ctx context.Context, c *claim) error {
	m := &memory{slots: s.memory, of: limits.Resource{Workspace: c.WorkspaceID}, bytes: firstMemory, window: s.cfg.WindowBytes}
	if _, err := m.slots.EnterN(ctx, m.of, m.bytes); err != nil {
		return err
	}
	c.memory.shrink(0)
	c.memory = m
	return nil
}

// fits reports whether there is memory for another message of the window, which has
// some bytes. It takes more if there is any.
func (m *memory) fits(bytes int) bool {
	if m == nil {
		return true
	}
	if bytes >= m.window {
		return false
	}
	if more := bytes + largestMessage - m.bytes; more > 0 {
		return m.resize(m.bytes + max(more, memoryStep))
	}
	return true
}

// shrink gives back what a rendered window of some bytes does not need.
func (m *memory) shrink(bytes int) {
	if m != nil && bytes < m.bytes {
		m.resize(bytes)
	}
}

func (m *memory) resize(bytes int) bool {
	ok := m.slots.Resize(m.of, m.bytes, bytes)
	if ok {
		m.bytes = bytes
	}
	return ok
}

// forget ends the messages of a window that has been called.
func (c *claim) forget(w *window) {
	w.messages = nil
	c.memory.shrink(0)
}

// noMemory records that a batch waits for memory, which is no error.
func (s *Sender) noMemory(c *claim, err error) error {
	if !errors.Is(err, errNoMemory) {
		return err
	}
	s.metrics.throttled(limitMemory)
	c.detail = "waits for memory: messages that are being sent take all that there is for them"
	return nil
}

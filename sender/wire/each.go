package wire

import (
	"context"
	"sync"

	"lemma/sender"
)

// Each calls send for the messages of a window, several at a time, and returns their
// receipts by index. After a failure of the provider no further message begins, and
// the rest is not called, for the same cause. After the end of ctx no message begins.
// send passes ctx and the message's StartBy to Post.
//
// If the servers of all messages are slow, these hold no others, and are called if they answer.
func (c *Client) Each(ctx context.Context, messages []sender.Message,
	send func(context.Context, *sender.Message) sender.Receipt,
) []sender.Receipt {
	receipts := c.each(ctx, messages, send)
	if c.slow == nil || !answerLate(receipts) || !c.slow.enterAlone() {
		return receipts
	}
	defer c.slow.leaveAlone()
	return c.each(context.WithValue(ctx, alone{}, true), messages, send)
}

// answerLate reports whether no message was called because of slow servers, of which some answer.
func answerLate(receipts []sender.Receipt) (some bool) {
	for _, r := range receipts {
		if r.Reason != serverSlow {
			return false
		}
		some = some || r.RetryAfter == leastWait
	}
	return some
}

// alone is the key of contexts of windows that call slow servers only.
type alone struct{}

// callsOf are the bounds of the calls of a window. Windows to slow servers only leave three quarters of the
// calls to others.
func (c *Client) callsOf(ctx context.Context) []chan struct{} {
	if isAlone(ctx) {
		return []chan struct{}{c.lateCalls, c.calls}
	}
	return []chan struct{}{c.calls}
}

func isAlone(ctx context.Context) bool { return ctx.Value(alone{}) != nil }

func (c *Client) each(ctx context.Context, messages []sender.Message,
	send func(context.Context, *sender.Message) sender.Receipt,
) []sender.Receipt {
	w := &window{messages: messages, receipts: make([]sender.Receipt, len(messages))}
	var all sync.WaitGroup
	for range min(c.options.Window, len(messages)) - 1 {
		all.Go(func() { w.work(ctx, send) })
	}
	w.work(ctx, send)
	all.Wait()
	return w.finish()
}

// window is one call to Each.
type window struct {
	messages []sender.Message
	receipts []sender.Receipt

	mu      sync.Mutex
	next    int
	failure *sender.Receipt // of the provider
}

func (w *window) work(ctx context.Context, send func(context.Context, *sender.Message) sender.Receipt) {
	for {
		i, ok := w.begin()
		if !ok {
			return
		}
		if over(ctx, w.messages[i].StartBy) {
			w.receipts[i] = *notCalled()
			continue
		}
		w.receipts[i] = send(ctx, &w.messages[i])
		if r := w.receipts[i]; r.Provider && (r.Outcome == sender.NotAccepted || r.Outcome == sender.NotCalled) {
			w.fail(r)
		}
	}
}

// begin returns the next message.
func (w *window) begin() (i int, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i = w.next
	w.next++
	return i, i < len(w.messages) && w.failure == nil
}

func (w *window) fail(r sender.Receipt) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failure == nil {
		w.failure = &r
	}
}

// finish fills in the receipts of messages that did not begin.
func (w *window) finish() []sender.Receipt {
	for i := range w.receipts {
		if w.receipts[i].Outcome == "" {
			w.receipts[i] = *w.failure
			w.receipts[i].Outcome, w.receipts[i].CarrierID = sender.NotCalled, ""
		}
	}
	return w.receipts
}

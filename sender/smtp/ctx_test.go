package smtp

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lemma/sender"
)

// When ctx ends, the message on its way is unknown, no other is begun, and the
// server, left in the middle of DATA, gets no dot that would make a mail.
func TestCtxEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	s := serve(t, &server{offers: "PIPELINING", answer: func(verb string, n int) string {
		if verb == "body" && n == 2 {
			cancel()
			return hang
		}
		return ""
	}})
	c := carrierTo(t, s, "")
	c.timeout = time.Minute // ctx, not this, ends the waiting
	began := time.Now()
	got := results(c.Send(ctx, messages(4)))
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %v to notice", took)
	}
	want := []result{
		{sender.Accepted, false, 250, ""}, {sender.Unknown, false, 0, "call_ended"},
		{sender.NotCalled, false, 0, "call_ended"}, {sender.NotCalled, false, 0, "call_ended"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("receipts (-want +got):\n%s", diff)
	}
	if n := len(s.kept()); n != 2 {
		t.Errorf("%d bodies, want 2", n)
	}
}

// lateCtx has ended, but its channel is not closed yet.
type lateCtx struct {
	context.Context
	ended atomic.Bool
}

func (c *lateCtx) Err() error {
	if c.ended.Load() {
		return context.Canceled
	}
	return nil
}

// The envelope behind a body is open when ctx ends: no body follows, and the
// connection is closed.
func TestOpenEnvelopeGetsNoDot(t *testing.T) {
	t.Parallel()
	ctx := &lateCtx{Context: context.Background()}
	s := serve(t, &server{offers: "PIPELINING", answer: func(verb string, n int) string {
		if verb == "DATA" && n == 2 {
			ctx.ended.Store(true)
		}
		return ""
	}})
	c := carrierTo(t, s, "")
	got := c.Send(ctx, messages(3))
	if got[0].Outcome != sender.Accepted || got[1].Outcome != sender.NotCalled || got[2].Outcome != sender.NotCalled {
		t.Errorf("%+v", results(got))
	}
	if n := len(s.kept()); n != 1 {
		t.Errorf("%d bodies, want 1", n)
	}
	if len(c.pool.resting) != 1 || c.pool.resting[0].conn != nil {
		t.Error("the connection is kept though the server waits for a body")
	}
}

func TestCtxEndedBefore(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := serve(t, &server{})
	got := carrierTo(t, s, "").Send(ctx, messages(2))
	for _, r := range got {
		if r.Outcome != sender.NotCalled {
			t.Errorf("%+v", r)
		}
	}
	if s.connections() != 0 {
		t.Errorf("%d connections", s.connections())
	}
}

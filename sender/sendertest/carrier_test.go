package sendertest_test

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"lemma/sender"
	"lemma/sender/sendertest"
)

// wires is a far end for the scripted carrier: it keeps what was called.
type wires struct {
	mu   sync.Mutex
	seen map[string][][]byte
}

func (w *wires) keep(m sender.Message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen[m.To] = append(w.seen[m.To], []byte(m.HTML))
}

func (w *wires) requests(to string) [][]byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen[to]
}

// The scripted carrier passes the suite itself, so that a test of the sender
// meets nothing that a real carrier would not do.
func TestScriptedCarrierConforms(t *testing.T) {
	t.Parallel()
	receipts := map[sendertest.Behaviour]sender.Receipt{
		sendertest.Accept:    {},
		sendertest.Reject:    {Outcome: sender.Rejected, Reason: "no"},
		sendertest.Refuse:    {Outcome: sender.NotAccepted, Reason: "later"},
		sendertest.DropAfter: {Outcome: sender.Unknown, Reason: "lost"},
		sendertest.Late:      {Outcome: sender.Unknown, Reason: "lost"},
	}
	sendertest.Conformance(t, sendertest.Harness{
		Address: func(n int) string { return fmt.Sprintf("user%d@example.test", n) },
		Reasons: []string{"no", "later", "lost", "call_ended", "down"},
		Serve: func(t *testing.T, behave func(string) sendertest.Behaviour) sendertest.FarEnd {
			w := &wires{seen: map[string][][]byte{}}
			var sent sync.Map
			here := &sendertest.Carrier{
				After: func(_ context.Context, m sender.Message) {
					w.keep(m)
					sent.Store(m.To, behave(m.To))
				},
				Script: func(m sender.Message, _ int) sender.Receipt {
					b, _ := sent.Load(m.To)
					return receipts[b.(sendertest.Behaviour)]
				},
			}
			nowhere := &sendertest.Carrier{Script: func(sender.Message, int) sender.Receipt {
				return sender.Receipt{Outcome: sender.NotAccepted, Provider: true, Reason: "down"}
			}}
			return sendertest.FarEnd{Carrier: here, Nowhere: nowhere, Requests: w.requests}
		},
	})
}

func TestGateStopsBeforeAndAfter(t *testing.T) {
	t.Parallel()
	before, after := sendertest.NewGate(), sendertest.NewGate()
	c := &sendertest.Carrier{Before: before.Stop, After: after.Stop}
	done := make(chan []sender.Receipt)
	go func() { done <- c.Send(t.Context(), []sender.Message{{Notification: "a"}}) }()
	<-before.Arrived
	if c.Made().Of("a") != 0 {
		t.Error("called before it was let pass")
	}
	close(before.Pass)
	<-after.Arrived
	if c.Made().Of("a") != 1 {
		t.Error("the call is not counted before it is answered")
	}
	close(after.Pass)
	if r := <-done; r[0].Outcome != sender.Accepted || r[0].At.After(time.Now()) {
		t.Errorf("%+v", r)
	}
}

func TestCtxEndsAfterACall(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	c := &sendertest.Carrier{After: func(context.Context, sender.Message) { cancel() }}
	r := c.Send(ctx, []sender.Message{{Notification: "a"}, {Notification: "b"}})
	if r[0].Outcome != sender.Unknown || r[1].Outcome != sender.NotCalled || c.Made().Of("b") != 0 {
		t.Errorf("%+v", r)
	}
}

func TestCallsOutliveTheirCarrier(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "calls")
	var calls []int
	for range 2 {
		c := &sendertest.Carrier{Calls: sendertest.CallsIn(path), Script: func(_ sender.Message, call int) sender.Receipt {
			calls = append(calls, call)
			return sender.Receipt{}
		}}
		c.Send(t.Context(), []sender.Message{{Notification: "a", Attempt: 1}})
	}
	if len(calls) != 2 || calls[1] != 2 || sendertest.CallsIn(path).Of("a") != 2 {
		t.Errorf("calls %v, in the file %v", calls, sendertest.CallsIn(path).All())
	}
}

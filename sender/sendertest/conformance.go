package sendertest

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma/sender"
)

// Behaviour is what the server does with one message.
type Behaviour string

// What the server does with a message.
const (
	Accept    Behaviour = "accept"     // accepts it
	Reject    Behaviour = "reject"     // rejects it for good
	Refuse    Behaviour = "refuse"     // refuses it for now
	DropAfter Behaviour = "drop after" // accepts it, and the connection breaks before the answer
	Late      Behaviour = "late"       // accepts it, and answers after the carrier's deadline
)

// Harness is what the tests of a carrier provide.
type Harness struct {
	// Serve starts a server that calls behave once for each message that has reached it.
	// It is called for every case and cleans up with t.
	Serve func(t *testing.T, behave func(to string) Behaviour) FarEnd
	// Address makes the nth recipient's address.
	Address func(n int) string
	// Reasons is the carrier's documented closed list.
	Reasons []string
	// Concurrent: the carrier sends several messages of a window at a time.
	Concurrent bool
	// OfRecipient: each recipient has a server of their own, whose failure is not one of
	// the provider.
	OfRecipient bool
}

// FarEnd is a server with a carrier on it.
type FarEnd struct {
	// Carrier is open on an account at this server. Its deadline for a call is a few
	// seconds at most.
	Carrier sender.Carrier
	// Nowhere is a carrier on an account whose server cannot be reached.
	Nowhere sender.Carrier
	// Requests are the contents of all wire requests for a recipient.
	Requests func(to string) [][]byte
}

// Conformance checks the contract of sender.Carrier.
func Conformance(t *testing.T, h Harness) {
	for _, c := range []struct {
		name string
		does map[int]Behaviour // by number of the message, from 1; others are accepted
		want []sender.Outcome
	}{
		{"all are accepted", nil, []sender.Outcome{sender.Accepted, sender.Accepted, sender.Accepted, sender.Accepted}},
		{"one is rejected", map[int]Behaviour{2: Reject},
			[]sender.Outcome{sender.Accepted, sender.Rejected, sender.Accepted, sender.Accepted}},
		{"the first is rejected", map[int]Behaviour{1: Reject},
			[]sender.Outcome{sender.Rejected, sender.Accepted, sender.Accepted, sender.Accepted}},
		{"the last is rejected", map[int]Behaviour{4: Reject},
			[]sender.Outcome{sender.Accepted, sender.Accepted, sender.Accepted, sender.Rejected}},
		{"one is refused for now", map[int]Behaviour{3: Refuse},
			[]sender.Outcome{sender.Accepted, sender.Accepted, sender.NotAccepted, sender.Accepted}},
		{"all are refused for now", map[int]Behaviour{1: Refuse, 2: Refuse}, []sender.Outcome{sender.NotAccepted, sender.NotAccepted}},
		{"dropped after it was accepted", map[int]Behaviour{2: DropAfter},
			[]sender.Outcome{sender.Accepted, sender.Unknown, sender.Accepted, sender.Accepted}},
		{"dropped twice in a row", map[int]Behaviour{1: DropAfter, 2: DropAfter},
			[]sender.Outcome{sender.Unknown, sender.Unknown, sender.Accepted}},
		{"answered after the deadline", map[int]Behaviour{2: Late}, []sender.Outcome{sender.Accepted, sender.Unknown, sender.Accepted}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h.outcomes(t, c.does, c.want)
		})
	}
	for name, run := range map[string]func(*testing.T){
		"ctx ended before": h.endedBefore, "deadline passed before the call": h.passedBefore, "too late to begin": h.tooLate,
		"ctx ends during a call": h.endsDuringACall, "no server": h.noServer,
		"two attempts send the same bytes": h.sameBytes, "many at once": h.manyAtOnce, "no messages": h.noMessages,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t)
		})
	}
}

func (h Harness) messages(from, n int) []sender.Message {
	all := make([]sender.Message, n)
	for i := range all {
		all[i] = sender.Message{
			Notification: fmt.Sprintf("ntf_%04d", from+i), Attempt: 1, To: h.Address(from + i),
			FromName: "Shop", FromEmail: "news@shop.example", Subject: fmt.Sprintf("Message %d", from+i),
			HTML: "<p>Grüße</p>", Text: "Grüße", Date: time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC),
			Seed: uuid.UUID{15: byte(from + i)},
		}
	}
	return all
}

func accept(string) Behaviour { return Accept }

// outcomes: each message gets its own receipt at its own index, and one request.
func (h Harness) outcomes(t *testing.T, does map[int]Behaviour, want []sender.Outcome) {
	by := map[string]Behaviour{}
	for n, b := range does {
		by[h.Address(n)] = b
	}
	end := h.Serve(t, func(to string) Behaviour {
		if b, ok := by[to]; ok {
			return b
		}
		return Accept
	})
	messages := h.messages(1, len(want))
	receipts := end.Carrier.Send(t.Context(), messages)
	h.check(t, messages, receipts)
	for i, r := range receipts {
		if r.Outcome != want[i] {
			t.Errorf("message %d: %+v, want %s", i+1, r, want[i])
		}
		if n := len(end.Requests(messages[i].To)); n != 1 {
			t.Errorf("message %d: %d requests, want 1", i+1, n)
		}
	}
}

// check is what holds for all receipts.
func (h Harness) check(t *testing.T, messages []sender.Message, receipts []sender.Receipt) {
	t.Helper()
	if len(receipts) != len(messages) {
		t.Fatalf("%d receipts for %d messages", len(receipts), len(messages))
	}
	for i, r := range receipts {
		settled := r.Outcome == sender.Accepted
		switch {
		case r.At.IsZero():
			t.Errorf("message %d: no time", i+1)
		case !settled && !slices.Contains(h.Reasons, r.Reason):
			t.Errorf("message %d: the reason %q is not on the list", i+1, r.Reason)
		case len(r.Detail) > 200 || strings.Contains(strings.ToLower(r.Detail), strings.ToLower(messages[i].To)):
			t.Errorf("message %d: the detail is too long or contains the address: %q", i+1, r.Detail)
		case r.Provider && r.Outcome == sender.Unknown:
			t.Errorf("message %d: %+v: an unknown outcome is not of the provider", i+1, r)
		}
	}
}

func (h Harness) endedBefore(t *testing.T) {
	end := h.Serve(t, accept)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	messages := h.messages(1, 3)
	receipts := end.Carrier.Send(ctx, messages)
	h.check(t, messages, receipts)
	for i, r := range receipts {
		if r.Outcome != sender.NotCalled || len(end.Requests(messages[i].To)) != 0 {
			t.Errorf("message %d: %+v, %d requests", i+1, r, len(end.Requests(messages[i].To)))
		}
	}
}

// stopped is a context after its deadline, before its timer has run, as in a process
// that was stopped.
type stopped struct{ context.Context } //nolint:containedctx // it is a context

// Deadline has passed.
func (stopped) Deadline() (time.Time, bool) { return time.Now().Add(-time.Second), true }

func (h Harness) passedBefore(t *testing.T) {
	end := h.Serve(t, accept)
	messages := h.messages(1, 2)
	for i, r := range end.Carrier.Send(stopped{t.Context()}, messages) {
		if r.Outcome != sender.NotCalled || len(end.Requests(messages[i].To)) != 0 {
			t.Errorf("message %d: %+v, %d requests", i+1, r, len(end.Requests(messages[i].To)))
		}
	}
}

// tooLate: StartBy has passed, though ctx leaves time.
func (h Harness) tooLate(t *testing.T) {
	end := h.Serve(t, accept)
	messages := h.messages(1, 3)
	for i := range messages[1:] {
		messages[i+1].StartBy = time.Now().Add(-time.Millisecond)
	}
	for i, r := range end.Carrier.Send(t.Context(), messages) {
		want, requests := sender.NotCalled, 0
		if i == 0 {
			want, requests = sender.Accepted, 1
		}
		if r.Outcome != want || len(end.Requests(messages[i].To)) != requests {
			t.Errorf("message %d: %+v, %d requests", i+1, r, len(end.Requests(messages[i].To)))
		}
	}
}

// endsDuringACall: the server has the second message when ctx ends, and does not
// answer in time.
func (h Harness) endsDuringACall(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	end := h.Serve(t, func(to string) Behaviour {
		if to == h.Address(2) {
			cancel()
			return Late
		}
		return Accept
	})
	messages := h.messages(1, 4)
	receipts := end.Carrier.Send(ctx, messages)
	h.check(t, messages, receipts)
	for i, want := range []sender.Outcome{sender.Accepted, sender.Unknown, sender.NotCalled, sender.NotCalled} {
		if h.Concurrent && i != 1 {
			h.proven(t, i, receipts[i], len(end.Requests(messages[i].To)))
			continue
		}
		if receipts[i].Outcome != want {
			t.Errorf("message %d: %+v, want %s", i+1, receipts[i], want)
		}
		called := want != sender.NotCalled
		if n := len(end.Requests(messages[i].To)); (n == 1) != called || n > 1 {
			t.Errorf("message %d: %d requests", i+1, n)
		}
	}
}

// proven: a message beside one during which ctx ends may have any outcome that its
// requests prove. An unknown one may not have reached the server.
func (h Harness) proven(t *testing.T, i int, r sender.Receipt, requests int) {
	t.Helper()
	want := map[sender.Outcome]int{sender.Accepted: 1, sender.NotCalled: 0, sender.Unknown: min(requests, 1)}
	if n, known := want[r.Outcome]; !known || n != requests {
		t.Errorf("message %d: %+v, %d requests", i+1, r, requests)
	}
}

func (h Harness) noServer(t *testing.T) {
	end := h.Serve(t, accept)
	messages := h.messages(1, 3)
	receipts := end.Nowhere.Send(t.Context(), messages)
	h.check(t, messages, receipts)
	tried := 0
	for i, r := range receipts {
		if r.Outcome == sender.NotAccepted {
			tried++
		}
		spared := (i > 0 || h.Concurrent) && r.Outcome == sender.NotCalled && !h.OfRecipient
		if r.Outcome != sender.NotAccepted && !spared || r.Provider == h.OfRecipient {
			t.Errorf("message %d: %+v, want not accepted, or after another not called, for the server's sake", i+1, r)
		}
	}
	if tried == 0 {
		t.Error("no message was tried")
	}
}

func (h Harness) sameBytes(t *testing.T) {
	end := h.Serve(t, accept)
	messages := h.messages(1, 2)
	end.Carrier.Send(t.Context(), messages)
	for i := range messages {
		messages[i].Attempt = 2
	}
	slices.Reverse(messages)
	end.Carrier.Send(t.Context(), messages)
	for _, m := range messages {
		if r := end.Requests(m.To); len(r) != 2 || !bytes.Equal(r[0], r[1]) {
			t.Errorf("%d requests, or they differ: %q", len(r), r)
		}
	}
}

func (h Harness) manyAtOnce(t *testing.T) {
	end := h.Serve(t, accept)
	const callers, each = 12, 20
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			messages := h.messages(1+i*each, each)
			receipts := end.Carrier.Send(t.Context(), messages)
			h.check(t, messages, receipts)
			for _, r := range receipts {
				if r.Outcome != sender.Accepted {
					t.Errorf("%+v", r)
				}
			}
		})
	}
	all.Wait()
	for n := range callers * each {
		if r := end.Requests(h.Address(1 + n)); len(r) != 1 {
			t.Errorf("message %d: %d requests", n, len(r))
		}
	}
}

func (h Harness) noMessages(t *testing.T) {
	if r := h.Serve(t, accept).Carrier.Send(t.Context(), nil); len(r) != 0 {
		t.Errorf("%+v", r)
	}
}

package sendertest

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"lemma/sender"
	"lemma/sender/trace"
)

// HTTPHarness is what the tests of a carrier on package wire provide.
type HTTPHarness struct {
	// Open opens a carrier on an account at a server, with the server's Trace. Its timeout
	// is a few seconds.
	Open func(t *testing.T, server *HTTPServer) sender.Carrier
	// To returns the recipient of a request.
	To func(Received) string
	// Same returns what two attempts have in common; nil: their bodies. Headers contain
	// times, and signatures of these.
	Same func(Received) []byte
	// Address makes the nth recipient's address.
	Address func(n int) string
	// Reasons is the carrier's documented closed list.
	Reasons []string
	// Replies are the provider's answers for Accept, Reject and Refuse.
	Replies map[Behaviour]Reply
	// Cases are all other answers in the carrier's table.
	Cases []HTTPCase
	// OnlyH2: the carrier does not speak HTTP/1.1.
	OnlyH2 bool
	// OfRecipient is that of Harness.
	OfRecipient bool
	// Verify returns what is wrong with a request by the provider's documentation; nil:
	// requests are not verified.
	Verify func(Received) error
	// AcceptAs is the answer for Accept where it depends on the request; nil: as in Replies.
	AcceptAs func(Received) Reply
}

// HTTPCase is an answer of the provider, and the receipt for it.
type HTTPCase struct {
	Name  string
	Reply Reply
	Want  sender.Receipt // Outcome, Provider, Definite, Reason, Code
}

// HTTPConformance checks the contract of sender.Carrier over HTTP/1.1 and HTTP/2.
func HTTPConformance(t *testing.T, h HTTPHarness) {
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		if h.OnlyH2 && proto == "HTTP/1.1" {
			continue
		}
		t.Run(proto, func(t *testing.T) {
			t.Parallel()
			Conformance(t, Harness{Address: h.Address, Reasons: h.Reasons, Concurrent: true, OfRecipient: h.OfRecipient,
				Serve: func(t *testing.T, behave func(string) Behaviour) FarEnd { return h.serve(t, proto, behave) }})
			t.Run("Retry-After", func(t *testing.T) {
				t.Parallel()
				h.retryAfter(t, proto)
			})
			t.Run("a private address", func(t *testing.T) {
				t.Parallel()
				h.hides(t, proto)
			})
			t.Run("trace", func(t *testing.T) {
				t.Parallel()
				h.trace(t, proto)
			})
			for name, reply := range map[string]Reply{"an endless answer": {Endless: true}, "an endless answer, slowly": {Trickle: true}} {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					h.endless(t, proto, reply)
				})
			}
			for _, c := range h.Cases {
				t.Run(c.Name, func(t *testing.T) {
					t.Parallel()
					h.answer(t, proto, c)
				})
			}
		})
	}
}

func (h HTTPHarness) serve(t *testing.T, proto string, behave func(string) Behaviour) FarEnd {
	server := ServeHTTPS(t, proto == "HTTP/2.0", func(r Received) Reply {
		if r.Proto != proto {
			t.Errorf("a request over %s, want %s", r.Proto, proto)
		}
		h.verify(t, r)
		switch b := behave(h.To(r)); b {
		case DropAfter:
			return Reply{Drop: true}
		case Late:
			return Reply{Hang: true}
		case Accept:
			return h.accept(r)
		default:
			return h.Replies[b]
		}
	})
	nowhere := &HTTPServer{URL: unused(t), Roots: server.Roots}
	return FarEnd{Carrier: h.open(t, server), Nowhere: h.open(t, nowhere), Requests: func(to string) (bodies [][]byte) {
		for _, r := range server.Received(func(r Received) bool { return h.To(r) == to }) {
			if h.Same == nil {
				bodies = append(bodies, r.Body)
			} else {
				bodies = append(bodies, h.Same(r))
			}
		}
		return bodies
	}}
}

func (h HTTPHarness) verify(t *testing.T, r Received) {
	if h.Verify == nil {
		return
	}
	if err := h.Verify(r); err != nil {
		t.Errorf("a request that is not as documented: %v", err)
	}
}

func (h HTTPHarness) accept(r Received) Reply {
	if h.AcceptAs != nil {
		return h.AcceptAs(r)
	}
	return h.Replies[Accept]
}

// unused is the URL of a server that has been stopped.
func unused(t *testing.T) string {
	t.Helper()
	server := ServeHTTPS(t, false, nil)
	server.Stop()
	return server.URL
}

func (h HTTPHarness) open(t *testing.T, server *HTTPServer) sender.Carrier {
	c := h.Open(t, server)
	t.Cleanup(c.Close)
	return c
}

// answer: one message gets the answer, after one that is accepted. It has the receipt
// and one request. A failure of the provider spares the messages behind it.
func (h HTTPHarness) answer(t *testing.T, proto string, c HTTPCase) {
	server := ServeHTTPS(t, proto == "HTTP/2.0", func(r Received) Reply {
		if h.To(r) == h.Address(1) {
			return h.accept(r)
		}
		return c.Reply
	})
	carrier := h.open(t, server)
	all := Harness{Address: h.Address, Reasons: h.Reasons}
	for n, want := range []sender.Receipt{{Outcome: sender.Accepted}, c.Want} {
		messages := all.messages(n+1, 1)
		receipts := carrier.Send(t.Context(), messages)
		all.check(t, messages, receipts)
		got := receipts[0]
		if got.Outcome != want.Outcome || got.Provider != want.Provider || got.Definite != want.Definite || got.Reason != want.Reason ||
			n > 0 && got.Code != want.Code {
			t.Errorf("%+v, want %+v", got, want)
		}
		if strings.ContainsAny(got.Detail, "\r\n") {
			t.Errorf("the detail has several lines: %q", got.Detail)
		}
		if got := server.Received(func(r Received) bool { return h.To(r) == h.Address(n+1) }); len(got) != 1 {
			t.Errorf("%d requests, want 1", len(got))
		}
	}
	h.spares(t, carrier, server, c.Want)
}

// retryAfter: the receipt of a message that is refused for now has the wait that the
// provider asks for.
func (h HTTPHarness) retryAfter(t *testing.T, proto string) {
	reply := h.Replies[Refuse]
	reply.Header = maps.Clone(reply.Header)
	if reply.Header == nil {
		reply.Header = map[string]string{}
	}
	reply.Header["Retry-After"] = "7"
	server := ServeHTTPS(t, proto == "HTTP/2.0", func(Received) Reply { return reply })
	got := h.open(t, server).Send(t.Context(), Harness{Address: h.Address}.messages(1, 1))[0]
	if got.Outcome != sender.NotAccepted || got.RetryAfter != 7*time.Second {
		t.Errorf("%+v, want not accepted and a wait of 7 s", got)
	}
}

// hides: a receipt has no text of a server at a private address, unless the operator allows it.
func (h HTTPHarness) hides(t *testing.T, proto string) {
	for _, hides := range []bool{false, true} {
		server := ServeHTTPS(t, proto == "HTTP/2.0", func(Received) Reply { return h.Replies[Reject] })
		server.Hides = hides
		got := h.open(t, server).Send(t.Context(), Harness{Address: h.Address}.messages(1, 1))[0]
		if got.Outcome != sender.Rejected || (got.Detail == "") != hides {
			t.Errorf("answers are hidden: %v; %+v", hides, got)
		}
	}
}

// trace: a carrier that is opened with a trace records its requests and answers there,
// without credentials.
func (h HTTPHarness) trace(t *testing.T, proto string) {
	reply := h.Replies[Accept]
	server := ServeHTTPS(t, proto == "HTTP/2.0", func(Received) Reply { return reply })
	server.Trace = trace.New(nil)
	h.open(t, server).Send(t.Context(), Harness{Address: h.Address}.messages(1, 1))
	steps, _ := server.Trace.Steps()
	seen := map[string]bool{}
	var all strings.Builder
	for _, s := range steps {
		seen[s.Type+" "+s.Part] = true
		_, _ = all.WriteString(s.Text + "\n") // a strings.Builder does not fail
	}
	for _, want := range []string{trace.StepConnected + " ", trace.StepSecured + " ", "sent line", "sent header", "sent body",
		"received line", "received header", "received body"} {
		if !seen[want] {
			t.Errorf("not recorded: %s; give Account.Trace to wire.Options, and Operator.ShowPrivate", want)
		}
	}
	for _, r := range server.Received(func(Received) bool { return true }) {
		if secret := r.Header.Get("Authorization"); secret != "" && strings.Contains(all.String(), secret) {
			t.Error("the header Authorization is recorded")
		}
	}
}

// mostWritten is what a server can write before it receives the end of the client's connection.
const mostWritten = 8 << 20

// endless: an answer without an end is read to a bound, and until the carrier's timeout.
// The message had one request. The next one is sent.
func (h HTTPHarness) endless(t *testing.T, proto string, reply Reply) {
	reply.Status, reply.Header = h.Replies[Accept].Status, h.Replies[Accept].Header
	server := ServeHTTPS(t, proto == "HTTP/2.0", func(r Received) Reply {
		if h.To(r) == h.Address(1) {
			return reply
		}
		return h.accept(r)
	})
	carrier, all := h.open(t, server), Harness{Address: h.Address, Reasons: h.Reasons}
	calls := 2
	if h.OfRecipient && reply.Trickle {
		calls = 1 // then the recipient's server is slow, and not called
	}
	for n := 1; n <= calls; n++ {
		messages := all.messages(n, 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		receipts := carrier.Send(ctx, messages)
		if ctx.Err() != nil {
			t.Error("the answer was read until the end of ctx")
		}
		cancel()
		all.check(t, messages, receipts)
		if n == 2 && receipts[0].Outcome != sender.Accepted {
			t.Errorf("the message after it: %+v", receipts[0])
		}
		if got := server.Received(func(r Received) bool { return h.To(r) == h.Address(n) }); len(got) != 1 {
			t.Errorf("%d requests for message %d, want 1", len(got), n)
		}
	}
	if n := server.written.Load(); n > mostWritten {
		t.Errorf("%d bytes of the answer were taken", n)
	}
}

// spares: behind a failure of the provider, a long window has few requests.
func (h HTTPHarness) spares(t *testing.T, carrier sender.Carrier, server *HTTPServer, want sender.Receipt) {
	if !want.Provider {
		return
	}
	all := Harness{Address: h.Address, Reasons: h.Reasons}
	messages := all.messages(100, 300)
	receipts := carrier.Send(t.Context(), messages)
	all.check(t, messages, receipts)
	last := receipts[len(receipts)-1]
	if last.Outcome != sender.NotCalled || !last.Provider || last.Definite != want.Definite || last.Reason != want.Reason {
		t.Errorf("the last message behind a failure: %+v", last)
	}
	if n := len(server.Received(func(Received) bool { return true })); n > 200 {
		t.Errorf("%d requests to a provider that fails", n)
	}
}

// ByStatus is what most carriers read from an answer that is not documented.
func ByStatus(status int) sender.Receipt {
	switch {
	case status >= 500:
		return sender.Receipt{Outcome: sender.Unknown, Reason: "server_error", Code: status}
	case status >= 300:
		return sender.Receipt{Outcome: sender.NotAccepted, Provider: true, Reason: "redirected", Code: status}
	}
	return sender.Receipt{Outcome: sender.Unknown, Reason: "protocol_error", Code: status}
}

// OtherAnswers are answers that no provider documents, and that prove nothing.
func OtherAnswers(want func(status int) sender.Receipt) (cases []HTTPCase) {
	for _, c := range []struct {
		name  string
		reply Reply
	}{
		{"500 without a body", Reply{Status: 500}},
		{"502 with a page", Reply{Status: 502, Body: "<html>Bad Gateway</html>"}},
		{"504", Reply{Status: 504}},
		{"a redirect", Reply{Status: 307, Header: map[string]string{"Location": "/elsewhere"}}},
		{"nonsense", Reply{Status: 200, Body: "{]nonsense"}},
		{"an answer that is too long", Reply{Status: 200, Body: `{"MessageId":"` + strings.Repeat("x", 70<<10) + `"}`}},
		{"half an answer", Reply{Status: 200, Header: map[string]string{"Content-Length": "40"}, Body: strings.Repeat(" ", 40), Break: true}},
	} {
		status := cmp.Or(c.reply.Status, http.StatusOK)
		cases = append(cases, HTTPCase{c.name, c.reply, want(status)})
	}
	return cases
}

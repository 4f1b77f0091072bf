package wire_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lemma/dial"
	"lemma/sender"
	"lemma/sender/sendertest"
	"lemma/sender/wire"
)

// Strangers choose the servers of some messages, each another one. The connections that a
// client keeps are bounded.
func TestManyServers(t *testing.T) {
	t.Parallel()
	var open atomic.Int64
	s := &http.Server{ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }),
		ConnState: func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				open.Add(1)
			case http.StateClosed:
				open.Add(-1)
			}
		}}
	l, err := net.Listen("tcp", "0.0.0.0:0") // each address of 127.0.0.0/8 is another server
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.Serve(l) }()
	defer s.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	c := wire.New(wire.Options{Operator: wire.Operator{AllowPrivate: true, Idle: dial.NewIdle(1000, 1000)}})
	defer c.Close()
	for i := range 400 {
		u := &url.URL{Scheme: "http", Host: net.JoinHostPort(fmt.Sprintf("127.0.%d.%d", 1+i/250, 1+i%250), port), Path: "/"}
		if a, failure := c.Post(t.Context(), wire.Request{URL: u, Header: http.Header{}, Body: []byte("x")}); failure != nil || a.Status != 200 {
			t.Fatalf("%d: %+v, %+v", i, a, failure)
		}
	}
	if n := open.Load(); n > 150 {
		t.Errorf("%d connections are open", n)
	}
}

// A server that a recipient chose hangs. It holds the first requests of a window for one
// timeout. Its other requests are not made, and those to other servers are.
func TestASlowServerDoesNotHoldOthers(t *testing.T) {
	t.Parallel()
	hangs := sendertest.ServeHTTPS(t, true, func(sendertest.Received) sendertest.Reply { return sendertest.Reply{Hang: true} })
	answers := sendertest.ServeHTTPS(t, true, func(sendertest.Received) sendertest.Reply { return sendertest.Reply{Body: "ok"} })
	hangs.Roots.AddCert(answers.Certificate())
	slow := open(t, hangs, wire.Options{Strange: true, Window: 4, Timeout: 3 * time.Second})
	fast, err := url.Parse(answers.URL)
	if err != nil {
		t.Fatal(err)
	}
	got := map[sender.Receipt]int{}
	all := messages(60)
	for i := range all[40:] {
		all[40+i].Link = answers.URL
	}
	receipts := slow.Each(t.Context(), all, func(ctx context.Context, m *sender.Message) sender.Receipt {
		if m.Link != "" {
			return (&plain{slow.Client, fast}).send(ctx, m)
		}
		r := slow.send(ctx, m)
		r.Provider = false // the server is the recipient's
		return r
	})
	for _, r := range receipts {
		got[sender.Receipt{Outcome: r.Outcome, Reason: r.Reason}]++
	}
	want := map[sender.Receipt]int{{Outcome: sender.Unknown, Reason: "timeout"}: 4,
		{Outcome: sender.NotCalled, Reason: "server_slow"}: 36, {Outcome: sender.Accepted}: 20}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if n := len(hangs.Received(func(sendertest.Received) bool { return true })); n != 4 {
		t.Errorf("%d requests to the server that hangs, want those that began before its first timeout: 4", n)
	}
}

// A server that answers late is not called beside others, and has windows of its own: were it the push
// service of all recipients, nothing would be sent to any. One that does not answer has none.
func TestAServerThatAnswersLate(t *testing.T) {
	t.Parallel()
	const atOnce, inTime, never = 0, 1, 2
	var mode, together, most atomic.Int32
	late := sendertest.ServeHTTPS(t, true, func(sendertest.Received) sendertest.Reply {
		switch mode.Load() {
		case never:
			return sendertest.Reply{Hang: true}
		case inTime:
			most.Store(max(most.Load(), together.Add(1)))
			defer together.Add(-1)
			<-time.After(600 * time.Millisecond)
		}
		return sendertest.Reply{Body: "ok"}
	})
	fast := sendertest.ServeHTTPS(t, true, func(sendertest.Received) sendertest.Reply { return sendertest.Reply{Body: "ok"} })
	late.Roots.AddCert(fast.Certificate())
	c := open(t, late, wire.Options{Strange: true, Window: 8, Most: 8, Timeout: time.Second})
	other, err := url.Parse(fast.URL)
	if err != nil {
		t.Fatal(err)
	}
	window := func(toOther int) map[sender.Receipt]int {
		all := messages(10)
		for i := range toOther {
			all[i].Link = fast.URL
		}
		got := map[sender.Receipt]int{}
		for _, r := range c.Each(t.Context(), all, func(ctx context.Context, m *sender.Message) sender.Receipt {
			if m.Link != "" {
				return (&plain{c.Client, other}).send(ctx, m)
			}
			return c.send(ctx, m)
		}) {
			if r.Reason == "server_slow" && r.RetryAfter <= 0 {
				t.Error("a message is not called without a time")
			}
			got[sender.Receipt{Outcome: r.Outcome, Reason: r.Reason}]++
		}
		return got
	}
	window(0)
	window(5)
	mode.Store(inTime)
	accepted, slow := sender.Receipt{Outcome: sender.Accepted}, sender.Receipt{Outcome: sender.NotCalled, Reason: "server_slow"}
	for i, step := range []struct {
		toOther int
		want    map[sender.Receipt]int
	}{
		{0, map[sender.Receipt]int{accepted: 8, slow: 2}}, {5, map[sender.Receipt]int{accepted: 5, slow: 5}},
		{0, map[sender.Receipt]int{accepted: 10}},
	} {
		most.Store(0)
		if diff := cmp.Diff(step.want, window(step.toOther)); diff != "" {
			t.Errorf("window %d: %s", i, diff)
		}
	}
	if n := most.Load(); n != 2 {
		t.Errorf("%d calls at a time, want a quarter of 8", n)
	}
	mode.Store(never)
	window(0)
	if diff := cmp.Diff(map[sender.Receipt]int{slow: 10}, window(0)); diff != "" {
		t.Error("a server that does not answer:", diff)
	}
}

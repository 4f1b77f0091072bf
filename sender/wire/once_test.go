package wire_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"lemma/sender"
	"lemma/sender/sendertest"
	"lemma/sender/wire"
)

// frames is a server that answers each whole request on HTTP/2 with frames of the
// test's choice.
type frames struct {
	*sendertest.HTTPServer

	// answer answers the nth request, from 1. It reports whether the connection stays.
	answer func(f *http2.Framer, n int, stream uint32) (stays bool)

	mu    sync.Mutex
	whole int // requests that arrived with their whole body
	conns int
}

func serveFrames(t *testing.T, answer func(f *http2.Framer, n int, stream uint32) bool) *frames {
	t.Helper()
	lender := httptest.NewUnstartedServer(nil) // for its certificate
	lender.StartTLS()
	defer lender.Close()
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: lender.TLS.Certificates, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	s := &frames{HTTPServer: sendertest.ServeHTTPS(t, false, nil), answer: answer}
	s.URL = "https://" + listener.Addr().String()
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() { s.serve(conn) })
		}
	})
	t.Cleanup(func() { _ = listener.Close(); all.Wait() })
	return s
}

func (s *frames) serve(conn net.Conn) {
	defer conn.Close()
	s.mu.Lock()
	s.conns++
	s.mu.Unlock()
	if _, err := io.ReadFull(conn, make([]byte, len(http2.ClientPreface))); err != nil {
		return
	}
	f := http2.NewFramer(conn, conn)
	_ = f.WriteSettings()
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				_ = f.WriteSettingsAck()
			}
		case *http2.DataFrame:
			if frame.StreamEnded() && !s.answer(f, s.arrived(), frame.StreamID) {
				return
			}
		}
	}
}

func (s *frames) arrived() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.whole++
	return s.whole
}

// ok accepts a request.
func ok(f *http2.Framer, stream uint32) bool {
	var header bytes.Buffer
	_ = hpack.NewEncoder(&header).WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: header.Bytes(), EndHeaders: true})
	return f.WriteData(stream, true, []byte("ok")) == nil
}

// A request is put on a connection again only if the server reports that it did not
// process it, and then once.
func TestRequestsAreProcessedOnce(t *testing.T) {
	t.Parallel()
	reset := func(code http2.ErrCode) func(*http2.Framer, uint32) bool {
		return func(f *http2.Framer, stream uint32) bool { return f.WriteRSTStream(stream, code) == nil }
	}
	leave := func(processed bool, code http2.ErrCode) func(*http2.Framer, uint32) bool {
		return func(f *http2.Framer, stream uint32) bool {
			last := stream - min(stream, 2)
			if processed {
				last = stream
			}
			_ = f.WriteGoAway(last, code, nil)
			return !processed // the client ends a connection without streams
		}
	}
	hangUp := func(*http2.Framer, uint32) bool { return false }
	for _, c := range []struct {
		name    string
		second  func(*http2.Framer, uint32) bool // answers the second request
		third   func(*http2.Framer, uint32) bool // answers the third, if there is one
		want    sender.Outcome
		reason  string
		arrived int
	}{
		{"the stream is refused", reset(http2.ErrCodeRefusedStream), ok, sender.Accepted, "", 3},
		{"the stream is refused twice", reset(http2.ErrCodeRefusedStream), reset(http2.ErrCodeRefusedStream),
			sender.NotAccepted, "connection_lost", 3},
		{"GOAWAY before the stream", leave(false, http2.ErrCodeNo), ok, sender.Accepted, "", 3},
		{"GOAWAY with an error before the stream", leave(false, http2.ErrCodeEnhanceYourCalm), ok, sender.Accepted, "", 3},
		{"GOAWAY before the stream, twice", leave(false, http2.ErrCodeNo), leave(false, http2.ErrCodeNo),
			sender.NotAccepted, "connection_lost", 3},
		{"refused, and then lost", reset(http2.ErrCodeRefusedStream), hangUp, sender.Unknown, "connection_lost", 3},
		{"GOAWAY after the stream, and no answer", leave(true, http2.ErrCodeNo), ok, sender.Unknown, "connection_lost", 2},
		{"reset with a protocol error", reset(http2.ErrCodeProtocol), ok, sender.Unknown, "connection_lost", 2},
		{"reset with an internal error", reset(http2.ErrCodeInternal), ok, sender.Unknown, "connection_lost", 2},
		{"cancelled", reset(http2.ErrCodeCancel), ok, sender.Unknown, "connection_lost", 2},
		{"the connection is lost", hangUp, ok, sender.Unknown, "connection_lost", 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := serveFrames(t, func(f *http2.Framer, n int, stream uint32) bool {
				switch n {
				case 2:
					return c.second(f, stream)
				case 3:
					return c.third(f, stream)
				}
				return ok(f, stream)
			})
			p := open(t, s.HTTPServer, wire.Options{Timeout: 20 * time.Second})
			got := p.Send(t.Context(), messages(1))
			got = append(got, p.Send(t.Context(), messages(1))...)
			if got[0].Outcome != sender.Accepted {
				t.Fatalf("%+v", got[0])
			}
			if r := got[1]; r.Outcome != c.want || r.Reason != c.reason || r.Provider != (c.want == sender.NotAccepted) {
				t.Errorf("%+v, want %s %s", r, c.want, c.reason)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.whole != c.arrived {
				t.Errorf("%d requests arrived, want %d", s.whole, c.arrived)
			}
		})
	}
}

// net/http sends a request again by itself if it has an Idempotency-Key and a
// connection that was used before breaks. A client does not.
func TestIdempotencyKeyCausesNoSecondRequest(t *testing.T) {
	t.Parallel()
	for _, http2 := range []bool{false, true} {
		var n int
		s := sendertest.ServeHTTPS(t, http2, func(sendertest.Received) sendertest.Reply {
			n++
			return sendertest.Reply{Body: "ok", Drop: n == 2}
		})
		p := open(t, s, wire.Options{Window: 1})
		for i, want := range []sender.Outcome{sender.Accepted, sender.Unknown, sender.Accepted} {
			header := map[string][]string{"Idempotency-Key": {"a"}, "X-Idempotency-Key": {"a"}}
			a, failure := p.Post(t.Context(), wire.Request{URL: p.url, Header: header, Body: []byte("{}")})
			if (a != nil) != (want == sender.Accepted) || a == nil && failure.Outcome != want {
				t.Errorf("request %d: %+v, %+v", i+1, a, failure)
			}
			if arrived := len(s.Received(func(sendertest.Received) bool { return true })); arrived != i+1 {
				t.Fatalf("%d requests after %d calls", arrived, i+1)
			}
		}
	}
}

func messages(n int) []sender.Message {
	all := make([]sender.Message, n)
	for i := range all {
		all[i] = sender.Message{Notification: "ntf_1", Attempt: 1, To: address(i + 1), HTML: "hello"}
	}
	return all
}

// slowly is a message whose call must not begin late.
func TestStartByHoldsBehindAFullClient(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	s := sendertest.ServeHTTPS(t, true, func(sendertest.Received) sendertest.Reply {
		<-release
		return sendertest.Reply{Body: "ok"}
	})
	p := open(t, s, wire.Options{Most: 1, Timeout: 20 * time.Second})
	all := messages(2)
	for i := range all {
		all[i].StartBy = time.Now().Add(300 * time.Millisecond)
	}
	time.AfterFunc(500*time.Millisecond, func() { close(release) })
	outcomes := map[sender.Outcome]int{}
	for _, r := range p.Send(t.Context(), all) {
		outcomes[r.Outcome]++
	}
	if outcomes[sender.Accepted] != 1 || outcomes[sender.NotCalled] != 1 {
		t.Error(outcomes)
	}
}

func TestNoConnection(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and does not speak TLS
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	old := sendertest.ServeHTTPS(t, false, nil)
	stranger := &sendertest.HTTPServer{URL: old.URL}
	for _, c := range []struct {
		name     string
		server   *sendertest.HTTPServer
		options  wire.Options
		reason   string
		definite bool
		detail   string
	}{
		{"HTTP/1.1 where HTTP/2 is required", old, wire.Options{OnlyH2: true}, "tls_failed", false, "the server refused the TLS handshake"},
		{"a certificate of an unknown authority", stranger, wire.Options{}, "tls_failed", false,
			"the server's certificate is signed by an unknown authority"},
		{"a silent server", &sendertest.HTTPServer{URL: "https://" + silent.Addr().String()}, wire.Options{Timeout: time.Second},
			"tls_failed", false, "no answer in time"},
		{"a metadata service", &sendertest.HTTPServer{URL: "https://169.254.169.254"}, wire.Options{}, "forbidden_address", true,
			"the host is at an address that may not be dialled"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := open(t, c.server, c.options)
			got := p.Send(t.Context(), messages(1))
			r := got[0]
			if r.Outcome != sender.NotAccepted || !r.Provider || r.Definite != c.definite || r.Reason != c.reason || r.Detail != c.detail {
				t.Errorf("%+v", r)
			}
		})
	}
	if n := len(old.Received(func(sendertest.Received) bool { return true })); n != 0 {
		t.Errorf("%d requests", n)
	}
}

// A call that waits for a connection when ctx ends is not called.
func TestCtxEndsBeforeAConnection(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	p := open(t, &sendertest.HTTPServer{URL: "https://" + silent.Addr().String()}, wire.Options{Timeout: time.Minute})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	for _, r := range p.Send(ctx, messages(3)) {
		if r.Outcome != sender.NotCalled || r.Provider {
			t.Errorf("%+v", r)
		}
	}
}

func TestRequestsThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	s := sendertest.ServeHTTPS(t, true, nil)
	p := open(t, s, wire.Options{})
	for name, r := range map[string]wire.Request{
		"no body":               {URL: p.url},
		"a header with a break": {URL: p.url, Body: []byte("{}"), Header: map[string][]string{"A": {"b\r\nc: d"}}},
		"a header with a space": {URL: p.url, Body: []byte("{}"), Header: map[string][]string{"A b": {"c"}}},
		"no URL":                {Body: []byte("{}")},
	} {
		_, failure := p.Post(t.Context(), r)
		if failure == nil || failure.Outcome != sender.Rejected || failure.Reason != "message_invalid" {
			t.Errorf("%s: %+v", name, failure)
		}
	}
	if len(s.Received(func(sendertest.Received) bool { return true })) != 0 {
		t.Error("a request was sent")
	}
}

// One connection of HTTP/2 carries all requests, and HTTP/1.1 has no more connections
// than requests at a time.
func TestRequestsAtATime(t *testing.T) {
	t.Parallel()
	for _, http2 := range []bool{false, true} {
		var mu sync.Mutex
		now, most := 0, 0
		s := sendertest.ServeHTTPS(t, http2, func(sendertest.Received) sendertest.Reply {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			time.Sleep(time.Millisecond)
			mu.Lock()
			now--
			mu.Unlock()
			return sendertest.Reply{Body: "ok"}
		})
		p := open(t, s, wire.Options{Most: 5, Window: 100, Timeout: 20 * time.Second})
		for _, r := range p.Send(t.Context(), messages(200)) {
			if r.Outcome != sender.Accepted {
				t.Errorf("%+v", r)
			}
		}
		if most > 5 || most < 2 {
			t.Errorf("%d requests at a time, want at most 5", most)
		}
	}
}

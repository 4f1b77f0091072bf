package wire

import (
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/net/http2"

	"lemma/dial"
	"lemma/sender"
)

// A server that sends frames without end loses its connection, and the outcome of the call is
// unknown.
func TestFloodsOfFramesEnd(t *testing.T) {
	t.Parallel()
	for name, frame := range map[string]string{
		"ping":     "\x00\x00\x08\x06\x00\x00\x00\x00\x00" + "12345678",
		"settings": "\x00\x00\x00\x04\x00\x00\x00\x00\x00",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			sent := make(chan int)
			go func() {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				defer conn.Close()
				_, _ = io.WriteString(conn, "\x00\x00\x00\x04\x00\x00\x00\x00\x00") // the settings of the server
				go func() { _, _ = io.Copy(io.Discard, conn) }()
				total, some := 0, strings.Repeat(frame, 1000)
				for err == nil && total < 64<<20 {
					_, err = io.WriteString(conn, some)
					total += len(some)
				}
				sent <- total
			}()
			c := overHTTP2(t)
			u, _ := url.Parse("http://" + l.Addr().String())
			begun := time.Now()
			_, failure := c.Post(t.Context(), Request{URL: u, Header: http.Header{}, Body: []byte("x")})
			if failure == nil || failure.Outcome != sender.Unknown || time.Since(begun) > DefaultTimeout/2 {
				t.Errorf("after %s: %+v", time.Since(begun), failure)
			}
			if n := <-sent; n > 32<<20 { // most of them are in the buffers of the kernel
				t.Errorf("the server sent %d bytes", n)
			}
		})
	}
}

// What a server sends beside its answers counts for all of them together.
func TestAFloodWithEachAnswer(t *testing.T) {
	t.Parallel()
	near, far := net.Pipe()
	defer far.Close()
	m := newMeter(near)
	receive := func(n int) (ended bool) {
		go func() { _, _ = far.Write(make([]byte, n)) }()
		_, err := io.ReadFull(m, make([]byte, n))
		return err != nil
	}
	answers := 0
	for ; answers < 100; answers++ { // of 1 KiB, and 30 KiB beside it
		m.begin()
		ended := receive(31 << 10)
		m.end(1<<10, 0)
		if ended {
			break
		}
	}
	if answers < 5 || answers > 15 {
		t.Errorf("it ends after %d answers", answers)
	}
}

// Answers that need what they have, with other requests in progress, are no flood.
func TestAnswersAreNotCountedTwice(t *testing.T) {
	t.Parallel()
	m := newMeter(nil)
	for range 10_000 {
		for range 3 {
			m.begin()
		}
		for others := 2; others >= 0; others-- {
			m.left.Add(-(3 << 10)) // received
			m.end(2<<10, others)
		}
		if left := m.left.Load(); left < 0 || left > mostFrames {
			t.Fatalf("%d bytes are left", left)
		}
	}
}

// Many large answers at the same time, and one after the other, are no flood, nor are those that are
// cut.
func TestLargeAnswersAreNoFlood(t *testing.T) {
	t.Parallel()
	for _, size := range []int{mostAnswer - 1, 3 * mostAnswer, 700 << 10} {
		server := serveHTTP2(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, size)) })
		c := overHTTP2(t)
		post(t, c, server)
		u, _ := url.Parse(server)
		p := c.pools[originOf(u)]
		first := p.conns[0]
		for range 5 {
			var all sync.WaitGroup
			for range 30 {
				all.Go(func() { post(t, c, server) })
			}
			all.Wait()
		}
		if len(p.conns) != 1 || p.conns[0] != first || p.floods > 0 {
			t.Errorf("%d bytes: %d connections, %d floods", size, len(p.conns), p.floods)
		}
	}
}

// An answer that is too large is cut, and the other calls of the connection are answered.
func TestAHugeAnswerBesideOthers(t *testing.T) {
	t.Parallel()
	working, release := make(chan struct{}, 10), make(chan struct{})
	server := serveHTTP2(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/huge" {
			_, _ = w.Write(make([]byte, 8<<20))
			return
		}
		working <- struct{}{}
		<-release
	})
	c := overHTTP2(t)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() { post(t, c, server) })
		<-working
	}
	u, _ := url.Parse(server + "/huge")
	if a, failure := c.Post(t.Context(), Request{URL: u, Header: http.Header{}, Body: []byte("x")}); failure != nil || a.Whole {
		t.Errorf("%+v", failure)
	}
	close(release)
	all.Wait()
}

// serveHTTP2 serves HTTP/2 without TLS.
func serveHTTP2(t *testing.T, handler http.HandlerFunc) (url string) {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	return server.URL
}

// serveTLS serves HTTP/2 over TLS, for so many requests at a time on a connection, and returns a client
// that trusts it. 0: as many as net/http takes.
func serveTLS(t *testing.T, streams int, handler http.HandlerFunc) (c *Client, url string) {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = true
	server.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: streams}
	server.StartTLS()
	t.Cleanup(server.Close)
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	c = New(Options{Operator: Operator{AllowPrivate: true, Roots: roots}})
	t.Cleanup(c.Close)
	return c, server.URL
}

// overHTTP2 is a client that expects HTTP/2 without TLS.
func overHTTP2(t *testing.T) *Client {
	t.Helper()
	c := shared(t, dial.NewIdle(10, 10), uuid.New())
	c.transport.Protocols.SetHTTP1(false)
	c.transport.Protocols.SetUnencryptedHTTP2(true)
	return c
}

// A server that floods each connection within its bounds, answers and ends it, has a connection now
// and then: it costs a part of the time that a flood takes.
func TestAFloodOfEachConnection(t *testing.T) {
	t.Parallel()
	server := serveFrames(t, func(f *http2.Framer, _ int, stream uint32) {
		for range (muchFrames + mostBeside + 10<<10) / 17 {
			_ = f.WritePing(true, [8]byte{})
		}
		answer(f, stream)
		_ = f.WriteGoAway(stream, http2.ErrCodeNo, nil)
	})
	c := overHTTP2(t)
	for i, least := range []time.Duration{0, mostBackoff, 2 * mostBackoff} {
		begun := time.Now()
		post(t, c, server)
		if took := time.Since(begun); took < least*9/10 {
			t.Errorf("call %d took %s", i, took)
		}
	}
}

// A connection whose server has sent too much gets no more requests, and those in progress on it are
// answered.
func TestAConnectionThatIsSpent(t *testing.T) {
	t.Parallel()
	working, release := make(chan struct{}), make(chan struct{})
	server := serveHTTP2(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/waits" {
			working <- struct{}{}
			<-release
		}
	})
	c := overHTTP2(t)
	var waits sync.WaitGroup
	waits.Go(func() { post(t, c, server+"/waits") })
	<-working
	u, _ := url.Parse(server)
	p := c.pools[originOf(u)]
	first := p.conns[0]
	first.meter.left.Add(-mostOfAnswer - mostFrames/2 - 10<<10)
	begun := time.Now()
	for range 3 {
		post(t, c, server)
	}
	if len(p.conns) != 1 || p.conns[0] == first {
		t.Error("requests are sent on it")
	}
	if took := time.Since(begun); took < mostBackoff*9/10 {
		t.Errorf("the next connection waits for %s", took)
	}
	close(release)
	waits.Wait()
	if p.floods != 1 {
		t.Errorf("%d floods", p.floods)
	}
	p.rest = time.Now().Add(-3 * mostRest) // long ago
	p.flooded(&conn{})
	if p.floods != 1 || time.Until(p.rest) > mostBackoff {
		t.Errorf("after a time: %d floods", p.floods)
	}
}

// What a server sends to receive large bodies is no flood, however slowly it reads them.
func TestLargeBodiesAreNoFlood(t *testing.T) {
	t.Parallel()
	c, server := serveTLS(t, 0, func(_ http.ResponseWriter, r *http.Request) {
		for b := make([]byte, 4<<10); ; time.Sleep(20 * time.Microsecond) {
			if _, err := r.Body.Read(b); err != nil {
				return
			}
		}
	})
	u, _ := url.Parse(server)
	send := func() {
		if _, failure := c.Post(t.Context(), Request{URL: u, Header: http.Header{}, Body: make([]byte, 500<<10)}); failure != nil {
			t.Errorf("%+v", failure)
		}
	}
	send()
	p := c.pools[originOf(u)]
	first := p.conns[0]
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 50 {
				send()
			}
		})
	}
	all.Wait()
	if left := first.meter.left.Load(); len(p.conns) != 1 || p.conns[0] != first || left < mostFrames-muchFrames {
		t.Errorf("%d connections, %d bytes are left", len(p.conns), left)
	}
}

// serveFrames serves HTTP/2 without TLS. answer answers the nth request of a connection, from 1.
func serveFrames(t *testing.T, answer func(f *http2.Framer, n int, stream uint32)) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go readFrames(conn, answer)
		}
	}()
	return "http://" + l.Addr().String()
}

func readFrames(conn net.Conn, answer func(f *http2.Framer, n int, stream uint32)) {
	defer conn.Close()
	if _, err := io.ReadFull(conn, make([]byte, len(http2.ClientPreface))); err != nil {
		return
	}
	f := http2.NewFramer(conn, conn)
	_ = f.WriteSettings()
	for n := 0; ; {
		got, err := f.ReadFrame()
		if err != nil {
			return
		}
		if h, ok := got.(*http2.HeadersFrame); ok {
			n++
			answer(f, n, h.StreamID)
		}
	}
}

// answer answers a request with status 200.
func answer(f *http2.Framer, stream uint32) {
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: []byte{0x88}, EndStream: true, EndHeaders: true})
}

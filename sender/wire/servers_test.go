package wire_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

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
	c := wire.New(wire.Options{Operator: wire.Operator{AllowPrivate: true}})
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

package server

import (
	"bufio"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma/pgtest"
	"lemma/sender"
	"lemma/sender/wire"
	"lemma/signing"
)

// serveMail accepts every message, and counts its open connections.
func serveMail(t *testing.T, open *atomic.Int64) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			open.Add(1)
			go func() {
				defer open.Add(-1)
				defer conn.Close()
				fmt.Fprint(conn, "220 mail\r\n")
				body := false
				for in := bufio.NewScanner(conn); in.Scan(); {
					switch {
					case body:
						if body = in.Text() != "."; !body {
							fmt.Fprint(conn, "250 ok\r\n")
						}
					case in.Text() == "DATA":
						body = true
						fmt.Fprint(conn, "354 go\r\n")
					default:
						fmt.Fprint(conn, "250 ok\r\n")
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

// The carriers of all kinds share one bound of idle connections, so that a workspace with
// many providers has few.
func TestCarriersOfAllKindsShareABoundOfIdleConnections(t *testing.T) {
	t.Parallel()
	var open, calls atomic.Int64
	host, port, _ := net.SplitHostPort(serveMail(t, &open))
	web := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { calls.Add(1) }))
	web.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			open.Add(1)
		case http.StateClosed:
			open.Add(-1)
		}
	}
	web.StartTLS()
	t.Cleanup(web.Close)
	roots := x509.NewCertPool()
	roots.AddCert(web.Certificate())
	kinds, workspace := kindsOf(wire.Operator{AllowPrivate: true, Roots: roots}), uuid.New()
	const each = sender.MostIdleOfWorkspace/2 + 2
	secrets := map[string]string{"http": fmt.Sprintf(`{"signing_secret":%q}`, signing.Secret(make([]byte, 32))), "smtp": "{}"}
	for kind, config := range map[string]string{"http": fmt.Sprintf(`{"url":%q}`, web.URL+"/send"),
		"smtp": fmt.Sprintf(`{"host":%q,"port":%s,"tls":"none"}`, host, port)} {
		for range each {
			c, err := kinds.find(kind).Open(sender.Account{WorkspaceID: workspace, ProviderID: uuid.New(), Kind: kind,
				Config: []byte(config), Secrets: []byte(secrets[kind])})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(c.Close)
			r := c.Send(t.Context(), []sender.Message{{Notification: "ntf_1", Attempt: 1, To: "ada@shop.example", FromEmail: "news@shop.example",
				Subject: "Hello", Text: "hello", Date: time.Now(), Seed: uuid.New()}})
			if r[0].Outcome != sender.Accepted {
				t.Fatalf("%s: %+v", kind, r[0])
			}
		}
	}
	pgtest.Eventually(t, 10*time.Second, "the idle connections of a workspace are at their limit", func() bool {
		return open.Load() == sender.MostIdleOfWorkspace
	})
	if calls.Load() != each {
		t.Errorf("%d requests, want %d", calls.Load(), each)
	}
}

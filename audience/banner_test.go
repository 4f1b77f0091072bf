package audience

import (
	"context"
	"fmt"
	"io"
	"net"
	"testing"

	"lemma"
	"lemma/audience/wire"
)

// A server of another protocol is not a database, and the error names that.
func TestAnotherProtocolIsNoDatabase(t *testing.T) {
	b := setup(t, Options{AllowPrivate: true, AllowUnix: true})
	for _, greeting := range []string{"220 mail.example.com ESMTP ready\r\n", "SSH-2.0-OpenSSH_9.6\r\n",
		"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		b.Must(err)
		defer l.Close()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(c, greeting)
				_, _ = io.ReadFull(c, make([]byte, 8))
				_ = c.Close()
			}
		}()
		for kind, dsn := range map[string]string{Postgres: "postgres://u:p@%s/shop?sslmode=disable", MySQL: "u:p@tcp(%s)/shop"} {
			_, err := b.TestSource(context.Background(), b.Workspace, b.addSource(t, kind, fmt.Sprintf(dsn, l.Addr())))
			if got := lemma.Public(err); codeOf(err) != CodeMalformed ||
				got != "the server does not use the protocol of the database; check the kind, the host and the port" {
				t.Errorf("%q as %s: %s, %v", greeting, kind, got, err)
			}
		}
	}
}

// When a login breaks, the driver dials again to cancel what it was doing, while the session
// reads the state of the connection that broke. The second connection does not replace it.
func TestACancelIsNoLogin(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a := New(nil, nil, Options{AllowPrivate: true})
	target := wire.Target{Kind: Postgres, Host: "127.0.0.1", Port: uint16(l.Addr().(*net.TCPAddr).Port), TLS: "disable"}
	p := &pgSession{}
	login, err := p.dial(context.WithValue(t.Context(), loginKey{}, true), a, target, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer login.Close()
	cancel, err := p.dial(t.Context(), a, target, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer cancel.Close()
	if p.meter != login {
		t.Error("the session has another connection than that of its login")
	}
}

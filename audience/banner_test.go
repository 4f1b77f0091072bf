package audience

import (
	"context"
	"fmt"
	"io"
	"net"
	"testing"

	"lemma"
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

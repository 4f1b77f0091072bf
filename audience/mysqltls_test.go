package audience

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lemma"
	"lemma/audience/wire"
)

// TestPasswordsOfMySQL8 logs in by caching_sha2_password at a server that has
// not cached the password: over TLS the client sends it, with the packet number as if the
// driver had begun TLS itself; without TLS it sends nothing, nor asks for a key, since the key
// could be that of another machine.
func TestPasswordsOfMySQL8(t *testing.T) {
	t.Parallel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	certificate := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	for name, c := range map[string]struct {
		network, tls string
		offers       bool // TLS
		more         byte // of the login method
		want         string
		refused      bool
	}{
		"require":     {"tcp", "require", true, 4, "p\x00", false},
		"prefer":      {"tcp", "prefer", true, 4, "p\x00", false},
		"disable":     {"tcp", "disable", true, 4, "", true},
		"stripped":    {"tcp", "prefer", false, 4, "", true},
		"it is known": {"tcp", "prefer", false, 3, "", false},
		"socket":      {"unix", "prefer", false, 4, "p\x00", false},
	} {
		source := wire.Target{Kind: MySQL, Database: "shop", User: "u", Password: "p", TLS: c.tls}
		address := "127.0.0.1:0"
		if c.network == "unix" {
			address = filepath.Join(t.TempDir(), "s")
			source.Socket = address
		}
		l, err := net.Listen(c.network, address)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if at, ok := l.Addr().(*net.TCPAddr); ok {
			source.Host, source.Port = "127.0.0.1", uint16(at.Port)
		}
		got := make(chan string, 1)
		go func() {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			got <- passwordSent(conn, certificate, c.offers, c.more)
		}()
		o := hostileOptions
		o.AllowUnix = true
		conn, _, err := New(nil, nil, o).loginMySQL(t.Context(), source, 1<<20)
		if conn != nil {
			conn.Close()
		}
		if sent := <-got; sent != c.want {
			t.Errorf("%s: sent %q, want %q", name, sent, c.want)
		}
		if errors.As(err, new(wire.Refusal)) != c.refused || !c.refused && err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// passwordSent is a server up to the packet with the password, and accepts a password in
// clear. With 3 as further data it knows the password, and accepts the login without it.
func passwordSent(conn net.Conn, certificate *tls.Config, offers bool, more byte) string {
	greeting := bytes.Replace(validGreeting(), []byte("mysql_native_password"), []byte("caching_sha2_password"), 1)
	if offers {
		greeting[bytes.IndexByte(greeting, 0)+1+4+8+1+1] |= clientSSL >> 8
	}
	conn.Write(packet(0, greeting))
	answer, number := numbered(conn)
	if offers && len(answer) == 32 { // the request for TLS
		secure := tls.Server(conn, certificate)
		if number != 1 || secure.Handshake() != nil {
			return "no TLS"
		}
		conn = secure
		if _, number = numbered(conn); number != 2 {
			return "a login with another number"
		}
	}
	conn.Write(packet(number+1, []byte{0x01, more})) // 4: the password is not cached, send it
	accepted := []byte{0, 0, 0, 2, 0, 0, 0}
	if more == 3 {
		conn.Write(packet(number+2, accepted))
		sent, _ := io.ReadAll(conn)
		return strings.TrimPrefix(string(sent), "\x01\x00\x00\x00\x01") // the end of the session
	}
	sent, number := numbered(conn)
	if string(sent) == "p\x00" {
		conn.Write(packet(number+1, accepted))
	}
	return string(sent)
}

func numbered(r io.Reader) (body []byte, number byte) {
	var header [4]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return nil, 0
	}
	body = make([]byte, int(header[0])|int(header[1])<<8|int(header[2])<<16)
	io.ReadFull(r, body)
	return body, header[3]
}

// TestServersThatDrip has a server that never ends the response to
// one of Lemma's own statements, each in turn. It is not parallel, since it counts the
// goroutines that are left.
func TestServersThatDrip(t *testing.T) {
	a := New(nil, nil, hostileOptions)
	for _, phase := range []string{"select connection_id", "show grants", "select audience"} {
		f := newFakeMySQL(t)
		f.endless = func(text string) bool { return strings.HasPrefix(text, phase) }
		f.reply = func(text string, command byte) []byte {
			if command != comPrepare && strings.HasPrefix(text, phase) {
				return slicesOf(packet(1, []byte{2}), packet(2, column("id", 253)), packet(3, column("email", 253)))
			}
			return nil
		}
		f.serve()
		if err := attack(t, a, f.target(), phase); lemma.KindOf(err) != lemma.Unavailable && codeOf(err) != CodeChanged {
			t.Errorf("%s: %v", phase, err)
		}
	}
}

// TestAPanicOfTheCallerIsNotTheSources has a callback that panics on a row.
func TestAPanicOfTheCallerIsNotTheSources(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	x := b.addAudience(t, shopSQL)
	_, err := b.Stream(t.Context(), b.Workspace, x.ID, nil, func(Row) error { panic("ours") })
	if lemma.KindOf(err) != lemma.Internal || !strings.Contains(err.Error(), "panic: ours") || strings.Contains(lemma.Public(err), "ours") {
		t.Errorf("got %v", err)
	}
	b.waitForNoSessions(t)
}

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
	for mode, want := range map[string]string{"require": "p\x00", "prefer": "p\x00", "disable": "", "stripped": ""} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		got := make(chan string, 1)
		go func() {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			got <- passwordSent(conn, certificate, mode != "stripped")
		}()
		source := wire.Target{Kind: MySQL, Host: "127.0.0.1", Port: uint16(l.Addr().(*net.TCPAddr).Port), Database: "shop", User: "u",
			Password: "p", TLS: mode}
		if mode == "stripped" {
			source.TLS = "prefer"
		}
		a := New(nil, nil, hostileOptions)
		conn, _, err := a.loginMySQL(t.Context(), source, 1<<20)
		if sent := <-got; sent != want {
			t.Errorf("%s: sent %q, want %q", mode, sent, want)
		}
		if want == "" && !errors.As(err, new(wire.Refusal)) || want != "" && err != nil {
			t.Errorf("%s: %v", mode, err)
		}
		if conn != nil {
			conn.Close()
		}
	}
}

// passwordSent is a server up to the packet with the password, and
// accepts a password in clear.
func passwordSent(conn net.Conn, certificate *tls.Config, offers bool) string {
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
	conn.Write(packet(number+1, []byte{0x01, 0x04})) // the password is not cached: send it
	sent, number := numbered(conn)
	if string(sent) == "p\x00" {
		conn.Write(packet(number+1, []byte{0, 0, 0, 2, 0, 0, 0}))
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

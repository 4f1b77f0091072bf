package smtp

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"lemma/sender"
)

// certificate is valid for 127.0.0.1 under the roots.
func certificate(t *testing.T) (*tls.Config, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	sheet := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	raw, err := x509.CreateCertificate(rand.Reader, sheet, sheet, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{raw}, PrivateKey: key}}}, roots
}

func TestTLS(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{tlsStart, tlsImplicit} {
		for _, trusted := range []bool{true, false} {
			t.Run(mode, func(t *testing.T) {
				t.Parallel()
				config, roots := certificate(t)
				s := serve(t, &server{offers: "PIPELINING STARTTLS", tls: config, implied: mode == tlsImplicit})
				c := carrierTo(t, s, `"tls":"`+mode+`"`)
				if trusted {
					c.roots = roots
				}
				got := c.Send(t.Context(), messages(5))
				if !trusted {
					if got[0].Reason != "tls_failed" || got[0].Outcome != sender.NotAccepted || s.receiptFor("MAIL") != 0 {
						t.Errorf("%+v", got[0])
					}
					return
				}
				for _, r := range append(got, c.Send(t.Context(), messages(2))...) {
					if r.Outcome != sender.Accepted {
						t.Errorf("%+v", r)
					}
				}
			})
		}
	}
}

// An attacker inserts answers after the one to STARTTLS. They are not encrypted, so
// they are discarded before TLS (RFC 3207, 4.2).
func TestForgetsWhatCameBeforeTLS(t *testing.T) {
	t.Parallel()
	config, roots := certificate(t)
	s := serve(t, &server{offers: "PIPELINING STARTTLS", tls: config, answer: func(verb string, n int) string {
		if verb == "STARTTLS" {
			return "220 go\r\n250-evil\r\n250 SIZE 1"
		}
		return ""
	}})
	c := carrierTo(t, s, `"tls":"starttls"`)
	c.roots = roots
	if got := c.Send(t.Context(), messages(1)); got[0].Outcome != sender.Accepted {
		t.Errorf("%+v", got[0])
	}
}

func TestAuth(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, auth, reply, reason string
		want                      []string
	}{
		{"plain", "PLAIN LOGIN", "", "", []string{"AUTH PLAIN AG1lAHNlY3JldA=="}},
		{"login", "LOGIN", "334 VXNlcm5hbWU6", "", []string{"AUTH LOGIN", "bWU=", "c2VjcmV0"}},
		{"refused", "PLAIN", "535 5.7.8 wrong", "auth_failed", []string{"AUTH PLAIN AG1lAHNlY3JldA=="}},
		{"none that we speak", "GSSAPI", "", "auth_failed", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, &server{answer: func(verb string, n int) string {
				switch verb {
				case "EHLO":
					return "250-test\r\n250-AUTH " + c.auth + "\r\n250 PIPELINING"
				case "AUTH":
					return c.reply
				case "bWU=":
					return "334 UGFzc3dvcmQ6"
				case "c2VjcmV0":
					return "235 welcome"
				}
				return ""
			}})
			carrier := carrierTo(t, s, "")
			carrier.username, carrier.password = "me", "secret"
			got := carrier.Send(t.Context(), messages(1))[0]
			if got.Reason != c.reason || (c.reason == "") != (got.Outcome == sender.Accepted) {
				t.Errorf("%+v", got)
			}
			sent := s.commands[1:min(len(s.commands), 1+len(c.want))]
			if !slices.Equal(sent, c.want) {
				t.Errorf("sent %q, want %q", sent, c.want)
			}
			if strings.Contains(got.Detail, "secret") {
				t.Errorf("the detail contains the password: %s", got.Detail)
			}
		})
	}
}

// A password is not sent unencrypted over a network, whatever the config is.
func TestPasswordIsSentOverTLSOrLoopbackOnly(t *testing.T) {
	t.Parallel()
	far := &fixedAddr{addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 25}}
	if private(far) {
		t.Error("a plain connection to another machine counts as private")
	}
	far.addr = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 25}
	if !private(far) {
		t.Error("loopback does not count as private")
	}
}

type fixedAddr struct {
	net.Conn
	addr net.Addr
}

func (f *fixedAddr) RemoteAddr() net.Addr { return f.addr }

package dial

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma/processors/processorstest"
)

// issued are certificates of a server: its own, that of its issuer, and others of the same name.
func issued(t *testing.T, others int) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	name := pkix.Name{CommonName: "an authority"}
	make := func(c *x509.Certificate, public, key *ecdsa.PrivateKey) []byte {
		c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(1), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
		der, err := x509.CreateCertificate(rand.Reader, c, &x509.Certificate{Subject: name}, &public.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	key := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	authority := func(k *ecdsa.PrivateKey) []byte {
		return make(&x509.Certificate{Subject: name, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, k, k)
	}
	issuer, own := key(), key()
	root := authority(issuer)
	parsed, err := x509.ParseCertificate(root)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(parsed)
	server := &x509.Certificate{DNSNames: []string{"a.example"}, IPAddresses: []net.IP{net.IPv4(192, 0, 2, 1)}}
	chain := [][]byte{make(server, own, issuer), root}
	for range others {
		chain = append(chain, authority(key()))
	}
	return tls.Certificate{Certificate: chain, PrivateKey: own}, roots
}

// connectTo returns the error of the client.
func connectTo(t *testing.T, server tls.Certificate, config *tls.Config) error {
	t.Helper()
	near, far := net.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = tls.Server(far, &tls.Config{Certificates: []tls.Certificate{server}, MinVersion: tls.VersionTLS12}).Handshake()
		_ = far.Close()
	}()
	client, err := Secure(t.Context(), near, config, time.Minute)
	if err == nil {
		_ = client.Close()
	}
	_ = near.Close()
	<-ended
	return err
}

// A server is who its certificate says, by a name or an address, and the certificate is of an authority.
func TestServersAreVerified(t *testing.T) {
	t.Parallel()
	server, roots := issued(t, 0)
	for name, want := range map[string]string{"a.example": "", "192.0.2.1": "", "b.example": "the server's certificate is for another name",
		"192.0.2.2": "the server's certificate is for another name", "": "the server has no name"} {
		if err := connectTo(t, server, TLS(uuid.Nil, name, roots)); (err != nil || want != "") && Cause(err) != want {
			t.Errorf("%q: %v, want %q", name, err, want)
		}
	}
	err := connectTo(t, server, TLS(uuid.Nil, "a.example", x509.NewCertPool()))
	if Cause(err) != "the server's certificate is signed by an unknown authority" {
		t.Errorf("without its authority: %v", err)
	}
	if err := connectTo(t, server, TLS(uuid.Nil, "a.example", nil)); !errors.As(err, new(x509.UnknownAuthorityError)) {
		t.Errorf("with the machine's authorities: %v", err)
	}
}

// A server cannot choose how long its certificates take to verify: it sends a few.
func TestServersSendFewCertificates(t *testing.T) {
	t.Parallel()
	for others, want := range map[int]error{mostCertificates - 2: nil, mostCertificates - 1: errCertificates} {
		server, roots := issued(t, others)
		if err := connectTo(t, server, TLS(uuid.Nil, "a.example", roots)); !errors.Is(err, want) {
			t.Errorf("%d certificates: %v, want %v", others+2, err, want)
		}
	}
}

// One workspace leaves a processor to the verifications of others.
func TestVerificationsWaitForAProcessor(t *testing.T) {
	t.Parallel()
	server, roots := issued(t, 0)
	workspace := uuid.New()
	verifyOf := func(w uuid.UUID) error { return connectTo(t, server, TLS(w, "a.example", roots)) }
	if runtime.GOMAXPROCS(0) > 1 {
		leave := processorstest.Take(verifications, workspace)
		if err := verifyOf(uuid.New()); err != nil {
			t.Errorf("another workspace: %v", err)
		}
		leave()
	}
	if err := processorstest.Waits(t, verifications, workspace, func() error { return verifyOf(workspace) }); err != nil {
		t.Error(err)
	}
}

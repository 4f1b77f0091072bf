package dial

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"time"

	"github.com/google/uuid"

	"lemma/processors"
)

// mostCertificates is how many certificates a server sends at most, its own with them. The server
// decides how long they take to verify: package x509 tries all that may have issued another, up to a
// hundred for a connection, and one that the key of P-521 has signed takes a millisecond.
const mostCertificates = 10

// verifications bounds the certificates that are verified at a time.
var verifications = processors.New()

var (
	errNoName       = Sentence("the server has no name")
	errCertificates = Sentence("the server sends more certificates than a chain has")
)

// TLS is the configuration of TLS with a server that a workspace has chosen, which has the certificate
// of a name or address. Without roots the machine's are used. Verifications share the processors by
// workspace.
func TLS(workspace uuid.UUID, server string, roots *x509.CertPool) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: server,
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection verifies
		VerifyConnection: func(s tls.ConnectionState) error {
			switch {
			case server == "": // package x509 would not compare it
				return errNoName
			case len(s.PeerCertificates) > mostCertificates:
				return errCertificates
			}
			defer verifications.Enter(workspace)()
			return verify(s.PeerCertificates, server, roots)
		},
	}
}

// verify is the verification that package tls makes by default.
func verify(sent []*x509.Certificate, server string, roots *x509.CertPool) error {
	o := x509.VerifyOptions{Roots: roots, DNSName: server, Intermediates: x509.NewCertPool()}
	for _, c := range sent[1:] {
		o.Intermediates.AddCert(c)
	}
	if _, err := sent[0].Verify(o); err != nil {
		return &tls.CertificateVerificationError{UnverifiedCertificates: sent, Err: err}
	}
	return nil
}

// Secure begins TLS on a connection, and closes that if it fails.
func Secure(ctx context.Context, conn net.Conn, config *tls.Config, within time.Duration) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	client := tls.Client(conn, config)
	if err := client.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return client, nil
}

package dial

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
)

// Sentence is an error whose text is constant, so that Cause may show it.
type Sentence string

func (s Sentence) Error() string { return string(s) }

// Cause is what a user may read of an error on a connection: a sentence of a closed
// list. The error itself, which is only logged, can contain addresses of the operator's
// network, or the text of any server.
func Cause(err error) string {
	var own Sentence
	var dns *net.DNSError
	var network net.Error
	switch {
	case errors.As(err, &own):
		return string(own)
	case errors.Is(err, ErrForbidden):
		return ErrForbidden.Error()
	case errors.As(err, &dns):
		return "the host name cannot be resolved"
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return "no answer in time"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "the connection was refused"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "the host cannot be reached"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "the connection was reset"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the server closed the connection"
	}
	return handshake(err)
}

// handshake is Cause for errors of TLS, without the names of certificates.
func handshake(err error) string {
	var authority x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	var alert *net.OpError // with this Op: package tls has no type for an alert that it received
	switch {
	case errors.As(err, &authority):
		return "the server's certificate is signed by an unknown authority"
	case errors.As(err, &name):
		return "the server's certificate is for another name"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "the server's certificate has expired or is not yet valid"
	case errors.As(err, &invalid):
		return "the server's certificate is not valid"
	case errors.As(err, &record):
		return "the server does not speak TLS on this port"
	case errors.As(err, &alert) && alert.Op == "remote error":
		return "the server refused the TLS handshake"
	}
	return "the connection failed"
}

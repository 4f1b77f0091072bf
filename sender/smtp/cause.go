package smtp

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"regexp"
	"strconv"
	"syscall"

	"lemma/dial"
)

// closed is a text of the closed list, which may be shown.
type closed string

func (c closed) Error() string { return string(c) }

// cause is what a user may read of an error on a connection: a sentence of a closed
// list. The error itself, which is logged, can contain addresses of the operator's
// network, or the text of a server that is not a mail server.
func cause(err error) string {
	var own closed
	var dns *net.DNSError
	var network net.Error
	switch {
	case errors.As(err, &own):
		return string(own)
	case errors.Is(err, dial.ErrForbidden):
		return dial.ErrForbidden.Error()
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

// handshake is cause for errors of TLS, without the names of certificates.
func handshake(err error) string {
	var authority x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	var alert tls.AlertError
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
	case errors.As(err, &alert):
		return "the server refused the TLS handshake"
	}
	return "the connection failed"
}

// enhanced is an enhanced status code (RFC 3463, 2) at the beginning of a reply.
var enhanced = regexp.MustCompile(`^[245]\.[0-9]{1,3}\.[0-9]{1,3}\b`)

// codes is what may be shown of a reply before the login: its numbers. Until then
// nothing proves that the host is the account's mail server.
func codes(a reply) string {
	text := "the server answered " + strconv.Itoa(a.code)
	if more := enhanced.Find(a.text); more != nil {
		text += " " + string(more)
	}
	return text
}

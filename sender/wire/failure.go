package wire

import (
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"time"

	"lemma/dial"
	"lemma/sender"
)

// serverSlow is the reason for which a message is not called that holds others up.
const serverSlow = "server_slow"

func receipt(r sender.Receipt) *sender.Receipt {
	r.At = time.Now()
	return &r
}

func notCalled() *sender.Receipt {
	return receipt(sender.Receipt{Outcome: sender.NotCalled, Reason: "call_ended"})
}

// Rejected is a rejection of the recipient or the message.
func Rejected(reason string) sender.Receipt {
	return sender.Receipt{Outcome: sender.Rejected, Reason: reason}
}

// OfProvider is a failure of the account or the server. If it is definite, waiting does not help.
func OfProvider(reason string, definite bool) sender.Receipt {
	return sender.Receipt{Outcome: sender.NotAccepted, Provider: true, Definite: definite, Reason: reason}
}

// ofProvider is a failure of the server before it could accept the message.
func ofProvider(reason string, err error) sender.Receipt {
	return sender.Receipt{Outcome: sender.NotAccepted, Provider: true, Reason: reason, Detail: sentence(reason, err)}
}

// reasonOf is the reason of a failed connection.
func reasonOf(err error) string {
	var before dialError
	switch {
	case errors.Is(err, dial.ErrForbidden):
		return "forbidden_address"
	case errors.As(err, &before):
		return "connect_failed"
	}
	return "tls_failed"
}

// sentence is what a user may read of an error.
func sentence(reason string, err error) string {
	switch reason {
	case "timeout":
		return "no answer in time"
	case "call_ended":
		return ""
	case "protocol_error":
		return "the server's answer is not valid HTTP"
	case "connection_lost":
		return "the connection was lost"
	case serverSlow:
		return "the server did not answer other calls in time"
	}
	return dial.Cause(err)
}

// streamError has the fields of the error with which net/http reports a reset HTTP/2
// stream. Such an error can be read into a struct with the same fields.
type streamError struct {
	StreamID uint32
	Code     uint32
	Cause    error
}

func (e streamError) Error() string { return "HTTP/2 stream error" }

const refusedStream = 7 // REFUSED_STREAM (RFC 9113, 7)

// unprocessed reports that the server has not processed a request: it refused the
// stream, or sent GOAWAY with a lower last stream (RFC 9113, 8.7). net/http has no type
// for GOAWAY. An error with another text counts as processed.
func unprocessed(err error) bool {
	if reset, ok := errors.AsType[streamError](err); ok {
		return reset.Code == refusedStream
	}
	text := err.Error()
	return text == "http2: Transport received Server's graceful shutdown GOAWAY" ||
		strings.HasPrefix(text, "http2: Transport received GOAWAY from server ErrCode:")
}

// isLost reports that a connection or stream ended without an answer.
func isLost(err error) bool {
	var network *net.OpError
	var reset streamError
	for _, lost := range []error{io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, lost) {
			return true
		}
	}
	text := err.Error()
	return errors.As(err, &network) || errors.As(err, &reset) || strings.HasPrefix(text, "http: server closed idle") ||
		strings.HasPrefix(text, "http2: client connection") || strings.HasPrefix(text, "http2: server sent GOAWAY")
}

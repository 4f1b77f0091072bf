package audience

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"lemma"
	"lemma/audience/sqltext"
	"lemma/audience/wire"
)

// Codes of errors of a source. Unavailable and timeout are temporary and have the
// kind Unavailable; the others require a change.
const (
	CodeUnavailable = "source_unavailable" // it cannot be reached, or the connection was lost
	CodeTimeout     = "source_timeout"     // it did not respond in time
	CodeRefused     = "source_refused"     // its host, login or role is refused, by it or by Lemma
	CodeChanged     = "source_changed"     // a column is missing or has another type, or the query is no longer valid
	CodeFailed      = "query_failed"       // the query fails on the data, such as a cast of a text to a number
	CodeLimit       = "source_limit"       // more rows or bytes than allowed
	CodeMalformed   = "source_malformed"   // its responses violate its protocol
	CodeOverloaded  = "overloaded"         // too many reads of sources are running
	CodeQuery       = "query_invalid"      // the query cannot be an audience
)

func unavailable(cause error, message string) *lemma.Error {
	return &lemma.Error{Kind: lemma.Unavailable, Code: CodeUnavailable, Message: message, Cause: cause}
}

func timedOut(cause error, message string) *lemma.Error {
	return &lemma.Error{Kind: lemma.Unavailable, Code: CodeTimeout, Message: message, Cause: cause}
}

func refused(cause error, format string, args ...any) *lemma.Error {
	return &lemma.Error{Kind: lemma.Invalid, Code: CodeRefused, Message: fmt.Sprintf(format, args...), Cause: cause}
}

func changed(format string, args ...any) *lemma.Error {
	return &lemma.Error{Kind: lemma.Invalid, Code: CodeChanged, Message: fmt.Sprintf(format, args...)}
}

func overLimit(format string, args ...any) *lemma.Error {
	return &lemma.Error{Kind: lemma.TooLarge, Code: CodeLimit, Message: fmt.Sprintf(format, args...)}
}

// malformed is the error for a source whose responses cannot be read.
func malformed(cause error) *lemma.Error {
	return &lemma.Error{Kind: lemma.Unavailable, Code: CodeMalformed,
		Message: "the server does not use the protocol of the database; check the kind, the host and the port", Cause: cause}
}

// badQuery is a fault of the query's text. line and column count from 1, or are 0 if
// the source gives no position.
func badQuery(line, column int, format string, args ...any) *lemma.Error {
	e := lemma.Fault("/sql", CodeQuery, format, args...)
	e.Code, e.Message = CodeQuery, "the query cannot be an audience"
	e.Fields[0].Line, e.Fields[0].Column = line, column
	return e
}

// badColumn is a fault of the column at pointer.
func badColumn(pointer, format string, args ...any) *lemma.Error {
	e := lemma.Fault(pointer, CodeQuery, format, args...)
	e.Code, e.Message = CodeQuery, "the query does not have the column"
	return e
}

// ours returns the error of Lemma that err wraps, or nil.
func ours(err error) *lemma.Error {
	var known *lemma.Error
	var rule wire.Refusal
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &rule):
		return refused(nil, "%s", rule)
	}
	return nil
}

// connectionLost is the error of a connection that failed or was lost. The cause,
// which can contain the host, is only logged.
func connectionLost(err error) *lemma.Error {
	var resolving *net.DNSError
	var network net.Error
	switch known := ours(err); {
	case known != nil: // wrapped by the driver
		return known
	case errors.As(err, &resolving):
		return unavailable(err, "the source's host name cannot be resolved")
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return timedOut(err, "the source does not respond")
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return unavailable(err, "the source closed the connection")
	}
	return unavailable(err, "the source cannot be reached")
}

// checkText refuses a text that is not one plain select, before the source gets it.
func checkText(kind, sql string) error {
	if f := sqltext.Check(kind, sql); f != nil {
		return badQuery(f.Line, f.Column, "%s", f.Detail)
	}
	return nil
}

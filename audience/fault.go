package audience

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"unicode"
	"unicode/utf8"

	"lemma"
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

// maxMessage bounds the messages of a source in errors and tables.
const maxMessage = 500

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

// connectionLost is the error of a connection that failed or was lost. The cause,
// which can contain the host, is only logged.
func connectionLost(err error) *lemma.Error {
	var known *lemma.Error
	var resolving *net.DNSError
	var network net.Error
	switch {
	case errors.As(err, &known): // the refusal of the dialler, wrapped by the driver
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

// printable returns a message of a source as one valid line of bounded length.
func printable(message string) string {
	message = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(message, "\uFFFD"))
	if len(message) > maxMessage {
		cut := maxMessage
		for !utf8.RuneStart(message[cut]) {
			cut--
		}
		message = message[:cut] + "…"
	}
	return message
}

// place converts an offset in characters, from 1, to line and column.
func place(sql string, offset int) (line, column int) {
	if offset < 1 {
		return 0, 0
	}
	line, column = 1, 1
	for _, r := range sql {
		if offset--; offset == 0 {
			break
		}
		column++
		if r == '\n' {
			line, column = line+1, 1
		}
	}
	return line, column
}

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

// What went wrong with a source. Unavailable and timeout pass by themselves
// and have the kind Unavailable; everything else needs a person.
const (
	CodeUnavailable = "source_unavailable" // it cannot be reached, or went away
	CodeTimeout     = "source_timeout"     // it did not answer in time
	CodeRefused     = "source_refused"     // its host, its login or its role is not acceptable, to it or to us
	CodeChanged     = "source_changed"     // a column is gone or of another type, or the query is no longer valid
	CodeFailed      = "query_failed"       // the query cannot compute with what is in the source: a cast of a text that is no number
	CodeLimit       = "source_limit"       // more rows or bytes than allowed
	CodeMalformed   = "source_malformed"   // its answers are not of its protocol
	CodeOverloaded  = "overloaded"         // too many are reading sources now
	CodeQuery       = "query_invalid"      // the query is not one that can be an audience
)

// maxMessage bounds what a source may put into our errors and tables.
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

// badQuery is a fault of the query's text; line and column count from 1, or
// are 0 where the source gives no place.
func badQuery(line, column int, format string, args ...any) *lemma.Error {
	e := lemma.Fault("/sql", CodeQuery, format, args...)
	e.Code, e.Message = CodeQuery, "the query cannot be an audience"
	e.Fields[0].Line, e.Fields[0].Column = line, column
	return e
}

// badColumn is a fault of the column that pointer names.
func badColumn(pointer, format string, args ...any) *lemma.Error {
	e := lemma.Fault(pointer, CodeQuery, format, args...)
	e.Code, e.Message = CodeQuery, "the query does not have the column"
	return e
}

// noAnswer is the fault of a connection that was lost or never came about. It
// keeps the cause for the log, where the host may be seen, out of the message.
func noAnswer(err error) *lemma.Error {
	var known *lemma.Error
	var resolving *net.DNSError
	var network net.Error
	switch {
	case errors.As(err, &known): // the dialler's own refusal, wrapped by the driver
		return known
	case errors.As(err, &resolving):
		return unavailable(err, "the source's host name cannot be resolved")
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return timedOut(err, "the source does not answer")
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return unavailable(err, "the source closed the connection")
	}
	return unavailable(err, "the source cannot be reached")
}

// spoken makes what a source said fit to be shown: one line, valid, not long.
func spoken(message string) string {
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

// place turns an offset in characters, from 1, into line and column.
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

package lemma

import (
	"errors"
	"fmt"
	"strings"
)

// Kind is the kind of an error, which package api maps to an HTTP status.
type Kind string

// The kinds of errors.
const (
	Invalid         Kind = "invalid"         // the request is wrong; Fields have the pointers
	Unauthenticated Kind = "unauthenticated" // no key, or not a valid one
	Forbidden       Kind = "forbidden"       // the key lacks a scope
	NotFound        Kind = "not_found"       // no such resource in this workspace
	WrongStatus     Kind = "invalid_status"  // the status does not allow it; Allowed has the allowed actions
	Conflict        Kind = "conflict"        // it conflicts with another resource or request
	Stale           Kind = "stale"           // If-Match does not match the current version
	TooLarge        Kind = "too_large"       // over a stated limit
	RateLimited     Kind = "rate_limited"    // too many requests of this kind in a short time; try again
	Unavailable     Kind = "unavailable"     // something outside Lemma does not respond; try again
	Internal        Kind = "internal"        // a fault in Lemma; the text is only logged
)

// Error is an error for the caller of the API. Message and Fields are sent to it;
// Cause is only logged.
type Error struct {
	Kind    Kind
	Code    string // such as "source_timeout"; default: the kind
	Message string // what is wrong and what to do
	Fields  []Field
	Status  string   // with WrongStatus: the current status
	Allowed []string // with WrongStatus: the actions that the status allows
	Cause   error    // only logged
}

// Field is a fault in one field of a request.
type Field struct {
	Pointer string // RFC 6901 pointer into the body ("/sql"), or the name of a query parameter ("?limit")
	Code    string
	Detail  string
	Line    int // from 1, in a text with lines; otherwise 0
	Column  int
}

func (e *Error) Error() string {
	texts := []string{e.Message}
	for _, f := range e.Fields {
		texts = append(texts, f.Pointer+": "+f.Detail)
	}
	text := strings.Join(texts, "; ")
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	return text
}

func (e *Error) Unwrap() error { return e.Cause }

// KindOf returns the kind of an error; Internal if there is no Error in it.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return Internal
}

// Fault returns the error for one field.
func Fault(pointer, code, format string, args ...any) *Error {
	detail := fmt.Sprintf(format, args...)
	return &Error{Kind: Invalid, Message: "the request is not valid", Fields: []Field{{Pointer: pointer, Code: code, Detail: detail}}}
}

var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

// Pointer makes a JSON pointer of its tokens (RFC 6901, 3).
func Pointer(tokens ...string) string {
	var p strings.Builder
	for _, token := range tokens {
		p.WriteByte('/')
		_, _ = pointerEscapes.WriteString(&p, token) // a strings.Builder does not fail
	}
	return p.String()
}

// Missing returns the error for an unknown id.
func Missing(what string) *Error {
	return &Error{Kind: NotFound, Message: "no such " + what + " in this workspace"}
}

// Changed returns the error for a condition on the version of a thing that has another one.
func Changed(what string) *Error {
	return &Error{Kind: Stale, Message: "the " + what + " has been changed since it was read: read it again"}
}

// Public is the part of an error for callers: the message and the details of
// fields, without the cause.
func Public(err error) string {
	var e *Error
	if !errors.As(err, &e) {
		return "internal error; see the log"
	}
	texts := []string{e.Message}
	for _, f := range e.Fields {
		texts = append(texts, f.Detail)
	}
	return strings.Join(texts, ": ")
}

// Wrap adds to an error what was being done, in the words of format; nil stays nil.
func Wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err)
}

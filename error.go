package lemma

import (
	"errors"
	"fmt"
)

// Kind is one of a closed set of ways in which a request can fail. The api
// room alone maps kinds to HTTP.
type Kind string

const (
	Invalid         Kind = "invalid"         // the request is wrong; Fields say where
	Unauthenticated Kind = "unauthenticated" // no key, or not a valid one
	Forbidden       Kind = "forbidden"       // the key lacks a scope
	NotFound        Kind = "not_found"       // no such thing in this workspace
	WrongState      Kind = "invalid_state"   // the thing's status does not allow it; Allowed says what it does
	Conflict        Kind = "conflict"        // somebody else holds or uses it
	Stale           Kind = "stale"           // If-Match names an older version
	TooLarge        Kind = "too_large"       // over a stated limit
	Unavailable     Kind = "unavailable"     // something outside Lemma does not answer; try again
	Internal        Kind = "internal"        // our fault; the text stays in the log
)

// Error is what a room answers when it cannot do what was asked. Message and
// Fields are for the caller and may be shown; the wrapped cause is not.
type Error struct {
	Kind    Kind
	Code    string // a finer word inside the kind, such as "source_timeout"; defaults to the kind
	Message string // a sentence that helps
	Fields  []Field
	Status  string   // with WrongState: the status now
	Allowed []string // with WrongState: the verbs that the status allows
	Cause   error    // for the log alone
}

// Field is one fault in a request.
type Field struct {
	Pointer string // RFC 6901 pointer into the body ("/sql"), or the name of a query parameter ("?limit")
	Code    string
	Detail  string
	Line    int // from 1, when the field is a text with lines; 0 otherwise
	Column  int
}

func (e *Error) Error() string {
	text := e.Message
	for _, f := range e.Fields {
		text += fmt.Sprintf("; %s: %s", f.Pointer, f.Detail)
	}
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	return text
}

func (e *Error) Unwrap() error { return e.Cause }

// KindOf tells the kind of an error; one that no room made is Internal.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return Internal
}

// Fault makes the error of one wrong field.
func Fault(pointer, code, format string, args ...any) *Error {
	detail := fmt.Sprintf(format, args...)
	return &Error{Kind: Invalid, Message: "the request is not valid", Fields: []Field{{Pointer: pointer, Code: code, Detail: detail}}}
}

// Missing makes the answer for an id that names nothing in this workspace.
func Missing(what string) *Error {
	return &Error{Kind: NotFound, Message: "no such " + what + " in this workspace"}
}

// Public is what of an error may be shown: its message and its fields'
// details, never its cause.
func Public(err error) string {
	var e *Error
	if !errors.As(err, &e) {
		return "an internal error; the log has more"
	}
	text := e.Message
	for _, f := range e.Fields {
		text += ": " + f.Detail
	}
	return text
}

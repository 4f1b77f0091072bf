// Package form reads the settings of a provider's account: the JSON objects of its
// config and its secrets. It guarantees that one error names all faulty fields, each by
// its JSON pointer, and that no text of one line contains a line break.
//
// The kinds of carriers decide which values are valid.
package form

import (
	"encoding/json"
	"net"
	"slices"
	"sort"
	"strings"

	"lemma"
)

// Form collects the faults of all fields.
type Form struct {
	Noun  string   // what has the fields: "an SMTP provider"
	Lines []string // pointers of texts that may have several lines

	faults []lemma.Field
}

// Fault records a faulty field.
func (f *Form) Fault(pointer, code, detail string) {
	f.faults = append(f.faults, lemma.Field{Pointer: pointer, Code: code, Detail: detail})
}

// OK reports that no fault is recorded.
func (f *Form) OK() bool { return len(f.faults) == 0 }

// Err is one *lemma.Error with all faults, or nil.
func (f *Form) Err() error {
	if f.OK() {
		return nil
	}
	sort.Slice(f.faults, func(i, j int) bool { return f.faults[i].Pointer < f.faults[j].Pointer })
	return &lemma.Error{Kind: lemma.Invalid, Message: "the provider's settings are not valid", Fields: f.faults}
}

// Object reads a JSON object into pointers by name. Nothing is the empty object, a null
// member is absent, and other members are faults.
func (f *Form) Object(pointer string, raw json.RawMessage, members map[string]any) {
	if !Present(raw) {
		return
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(raw, &object); err != nil {
		f.Fault(pointer, "wrong_type", "must be a JSON object")
		return
	}
	for name, value := range object {
		at := pointer + lemma.Pointer(name)
		target, known := members[name]
		if !known {
			f.Fault(at, "unknown_field", f.Noun+" has no such field")
		} else if Present(value) {
			f.member(at, value, target)
		}
	}
}

func (f *Form) member(at string, value json.RawMessage, target any) {
	if raw, ok := target.(*json.RawMessage); ok {
		*raw = value
		return
	}
	if err := json.Unmarshal(value, target); err != nil {
		f.Fault(at, "wrong_type", "must be a "+wanted(target))
		return
	}
	if text, ok := target.(*string); ok && !slices.Contains(f.Lines, at) && HasBreak(*text) {
		f.Fault(at, "line_break", "must not contain line breaks or NUL")
	}
}

func wanted(target any) string {
	switch target.(type) {
	case *string:
		return "string"
	case *[]int:
		return "list of whole numbers"
	case *map[string]string:
		return "JSON object of strings"
	}
	return "whole number"
}

// Present reports that a JSON value is given and not null.
func Present(raw json.RawMessage) bool {
	return len(raw) > 0 && string(raw) != "null"
}

// IsHost accepts an IP address or a name by IsName: nothing that could inject a command.
func IsHost(s string) bool { return IsName(s) || net.ParseIP(s) != nil }

// IsName accepts the name of a host or domain.
func IsName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && c != '-' && c != '.' && c != '_' {
			return false
		}
	}
	return s != "" && len(s) <= 253 && s[0] != '.' && s[0] != '-'
}

// HasBreak reports that a text contains CR, LF or NUL.
func HasBreak(s string) bool { return strings.ContainsAny(s, "\r\n\x00") }

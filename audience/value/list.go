package value

import (
	"bytes"
	"strings"
)

// A Postgres array has the type of its elements and "[]", in any number of
// dimensions: text[], integer[]. It becomes a JSON list, nested like the array.
const listSuffix = "[]"

// ListOf is the type of arrays whose elements are of type t.
func ListOf(t Type) Type { return t + listSuffix }

// Element returns the type of the elements of a list, or false for other types.
func (t Type) Element() (Type, bool) {
	name, ok := strings.CutSuffix(string(t), listSuffix)
	return Type(name), ok
}

// maxDimensions is Postgres's own limit (MAXDIM).
const maxDimensions = 6

// appendList writes the text form of a Postgres array as a JSON list: array_out's
// {a,"b c",NULL}, or with bounds [0:1]={a,b}. Other forms are written as text.
func appendList(dst []byte, element Type, text []byte) []byte {
	r := listReader{text: withoutBounds(text), element: element, dst: dst}
	if r.list(maxDimensions) && r.at == len(r.text) {
		return r.dst
	}
	return AppendString(dst, text)
}

func withoutBounds(text []byte) []byte {
	if len(text) == 0 || text[0] != '[' {
		return text
	}
	bounds, list, ok := bytes.Cut(text, []byte("="))
	if !ok || len(bytes.Trim(bounds, "[]:-0123456789")) > 0 {
		return text
	}
	return list
}

// listReader converts the text of an array to JSON.
type listReader struct {
	text    []byte
	at      int
	element Type
	dst     []byte
}

func (r *listReader) take(c byte) bool {
	if r.at < len(r.text) && r.text[r.at] == c {
		r.at++
		return true
	}
	return false
}

// list reads {...} with at most that many dimensions.
func (r *listReader) list(dimensions int) bool {
	if dimensions == 0 || !r.take('{') {
		return false
	}
	r.dst = append(r.dst, '[')
	if r.take('}') {
		r.dst = append(r.dst, ']')
		return true
	}
	for r.item(dimensions) {
		if r.take('}') {
			r.dst = append(r.dst, ']')
			return true
		}
		if !r.take(',') {
			return false
		}
		r.dst = append(r.dst, ',')
	}
	return false
}

func (r *listReader) item(dimensions int) bool {
	if r.at == len(r.text) {
		return false
	}
	switch r.text[r.at] {
	case '{':
		return r.list(dimensions - 1)
	case '"':
		return r.quoted()
	}
	return r.bare()
}

// bare reads an element without quotes. Only here NULL is null.
func (r *listReader) bare() bool {
	n := bytes.IndexAny(r.text[r.at:], `,{}"\`)
	if n <= 0 {
		return false
	}
	value := r.text[r.at : r.at+n]
	r.at += n
	if string(value) == "NULL" {
		value = nil
	}
	r.dst = Append(r.dst, r.element, value)
	return true
}

// quoted reads an element in quotes, with backslash escapes.
func (r *listReader) quoted() bool {
	value := make([]byte, 0, 32)
	for r.at++; r.at < len(r.text); r.at++ {
		switch c := r.text[r.at]; c {
		case '"':
			r.at++
			r.dst = Append(r.dst, r.element, value)
			return true
		case '\\':
			if r.at++; r.at == len(r.text) {
				return false
			}
			value = append(value, r.text[r.at])
		default:
			value = append(value, c)
		}
	}
	return false
}

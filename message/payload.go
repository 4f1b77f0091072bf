package message

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

var (
	errPayload      = errors.New("the data is not a JSON object")
	errPayloadSize  = fmt.Errorf("the data has more than %d bytes", MaxPayload)
	errPayloadCount = fmt.Errorf("the lists and objects in the data have more than %d values", MaxValues)
	errPayloadArray = fmt.Errorf("a list in the data has more than %d elements", MaxArray)
)

// tooLarge is stored in place of data of more than MaxPayload bytes. It is JSON, but not
// an object as all data is.
const tooLarge = `"too large"`

// Stored returns the data of a profile as it is stored with a notification. Data of more
// than MaxPayload bytes is not stored: Render fails with the same error for what is.
func Stored(payload string) string {
	if len(payload) > MaxPayload {
		return tooLarge
	}
	return payload
}

// read sets values to the members of payload, a JSON object, that have names;
// missing ones are nil. A flat object of scalars, the usual payload, is read in one
// pass; others are read by encoding/json.
func read(values []value, names []string, payload string) error {
	if len(payload) > MaxPayload || payload == tooLarge {
		return errPayloadSize
	}
	if readFlat(values, names, payload) {
		return nil
	}
	return readTree(values, names, payload)
}

// readFlat returns false if the payload is not a flat object of scalars; values are
// then undefined.
func readFlat(values []value, names []string, payload string) bool {
	clear(values)
	s := scanner{text: payload}
	if !s.take('{') {
		return false
	}
	if s.take('}') {
		return s.end()
	}
	for expected := 0; ; expected++ {
		key, ok := s.string()
		if !ok || !s.take(':') {
			return false
		}
		v, ok := s.scalar()
		if !ok {
			return false
		}
		if at := find(names, key, expected); at >= 0 {
			values[at] = v
		}
		if s.take('}') {
			return s.end()
		}
		if !s.take(',') {
			return false
		}
	}
}

// find returns the index of key in names, which are sorted and mostly in the order of
// the data.
func find(names []string, key string, expected int) int {
	if expected < len(names) && names[expected] == key {
		return expected
	}
	if at, found := slices.BinarySearch(names, key); found {
		return at
	}
	return -1
}

// scanner reads JSON scalars (RFC 8259).
type scanner struct {
	text string
	at   int
}

func (s *scanner) space() {
	for s.at < len(s.text) {
		switch s.text[s.at] {
		case ' ', '\t', '\n', '\r':
			s.at++
		default:
			return
		}
	}
}

func (s *scanner) take(c byte) bool {
	s.space()
	if s.at >= len(s.text) || s.text[s.at] != c {
		return false
	}
	s.at++
	return true
}

func (s *scanner) end() bool {
	s.space()
	return s.at == len(s.text)
}

// string reads a string without escapes, as a part of the payload.
func (s *scanner) string() (string, bool) {
	if !s.take('"') {
		return "", false
	}
	from, plain := s.at, true
	for ; s.at < len(s.text); s.at++ {
		switch c := s.text[s.at]; {
		case c == '"':
			found := s.text[from:s.at]
			s.at++
			return found, plain || utf8.ValidString(found)
		case c == '\\' || c < ' ':
			return "", false
		case c >= utf8.RuneSelf:
			plain = false
		}
	}
	return "", false
}

// escaped reads a string with escapes by encoding/json.
func (s *scanner) escaped() (string, bool) {
	for end := s.at + 1; end < len(s.text); end++ {
		switch s.text[end] {
		case '\\':
			end++
		case '"':
			var found string
			err := json.Unmarshal([]byte(s.text[s.at:end+1]), &found)
			s.at = end + 1
			return found, err == nil
		}
	}
	return "", false
}

func (s *scanner) scalar() (value, bool) {
	s.space()
	if s.at >= len(s.text) {
		return value{}, false
	}
	switch c := s.text[s.at]; {
	case c == '"':
		return s.quoted()
	case c == '-' || isDigit(c):
		return s.number()
	case s.word("null"):
		return value{}, true
	case s.word("true"):
		return boolean(true), true
	case s.word("false"):
		return boolean(false), true
	}
	return value{}, false
}

func (s *scanner) quoted() (value, bool) {
	from := s.at
	found, ok := s.string()
	if !ok {
		s.at = from
		found, ok = s.escaped()
	}
	return text(found), ok
}

func (s *scanner) word(w string) bool {
	if !strings.HasPrefix(s.text[s.at:], w) {
		return false
	}
	s.at += len(w)
	return true
}

// number reads a number by the grammar of RFC 8259, section 6.
func (s *scanner) number() (value, bool) {
	from := s.at
	if s.text[s.at] == '-' {
		s.at++
	}
	whole := s.at
	if s.at = digits(s.text, s.at); s.at == whole || s.text[whole] == '0' && s.at > whole+1 {
		return value{}, false
	}
	if s.at < len(s.text) && s.text[s.at] == '.' {
		if s.at = digits(s.text, s.at+1); !isDigit(s.text[s.at-1]) {
			return value{}, false
		}
	}
	if s.at < len(s.text) && s.text[s.at]|0x20 == 'e' {
		return value{}, false // rare; encoding/json reads it
	}
	return numeric(s.text[from:s.at]), true
}

// numeric reads a JSON number without loss: as an integer or a float if that has
// every digit, and otherwise as text, so that an account number of 20 digits is not
// rounded.
func numeric(s string) value {
	if !strings.ContainsAny(s, ".eE") {
		if n, err := strconv.Atoi(s); err == nil {
			return integer(n)
		}
		return text(s)
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return text(s)
	}
	if len(s) <= 15 || strings.ContainsAny(s, "eE") || decimal(f) == strings.TrimRight(s, "0") {
		return float(withoutSign(f))
	}
	return text(s)
}

// readTree reads any payload.
func readTree(values []value, names []string, payload string) error {
	clear(values)
	decoder := json.NewDecoder(strings.NewReader(payload))
	decoder.UseNumber()
	var data map[string]any
	if err := decoder.Decode(&data); err != nil || data == nil {
		return errPayload
	}
	if _, err := decoder.Token(); err != io.EOF {
		return errPayload
	}
	var p treeReader
	for i, name := range names {
		item, err := p.convert(data[name])
		if err != nil {
			return err
		}
		values[i] = item
	}
	return nil
}

// treeReader converts trees and counts their values.
type treeReader struct{ values int }

// convert converts a value of encoding/json.
func (p *treeReader) convert(v any) (value, error) {
	switch v := v.(type) {
	case bool:
		return boolean(v), nil
	case json.Number:
		return numeric(string(v)), nil
	case string:
		return text(v), nil
	case []any:
		return p.list(v)
	case map[string]any:
		return p.object(v)
	}
	return value{}, nil
}

func (p *treeReader) list(list []any) (value, error) {
	if err := p.count(len(list)); err != nil {
		return value{}, err
	}
	for i, item := range list {
		converted, err := p.convert(item)
		if err != nil {
			return value{}, err
		}
		list[i] = converted.bound()
	}
	return value{kind: isTree, tree: list}, nil
}

func (p *treeReader) object(m map[string]any) (value, error) {
	if err := p.count(len(m)); err != nil {
		return value{}, err
	}
	for name, item := range m {
		converted, err := p.convert(item)
		if err != nil {
			return value{}, err
		}
		m[name] = converted.bound()
	}
	return value{kind: isTree, tree: object(m)}, nil
}

// count refuses a list or object with too many elements, and too many values in all.
func (p *treeReader) count(elements int) error {
	if elements > MaxArray {
		return errPayloadArray
	}
	if p.values += elements; p.values > MaxValues {
		return errPayloadCount
	}
	return nil
}

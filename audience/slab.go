package audience

import (
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf8"

	"lemma/audience/value"
)

// rowOffsets are the ends of the strings of a row in the slab. Each begins at the end
// of the one before.
type rowOffsets struct {
	key, email, phone, push, payload int
	optedOut, tooLarge               bool
}

// maxSlab bounds a slab of large rows.
const maxSlab = 4 << 20

// add adds a row. Of one that is too large the payload is missing, and addresses that came shortened.
func (s *stream) add(tooLarge bool) {
	m := rowOffsets{tooLarge: tooLarge}
	if tooLarge {
		s.run.wire().ClearMarks(s.values)
	}
	s.slab = appendKey(s.slab, s.values[0])
	m.key = len(s.slab)
	if s.own.email > 0 {
		s.slab = appendClean(s.slab, s.values[s.own.email])
	}
	m.email = len(s.slab)
	if s.own.phone > 0 {
		s.slab = appendClean(s.slab, s.values[s.own.phone])
	}
	m.phone = len(s.slab)
	if s.own.push > 0 {
		s.slab = appendTokens(s.slab, s.own.pushType, s.values[s.own.push])
	}
	m.push = len(s.slab)
	m.optedOut = s.own.optOut > 0 && value.IsTrue(s.values[s.own.optOut])
	payload := s.values[s.own.payload:]
	if tooLarge {
		payload = nil
	}
	s.payload(payload)
	m.payload = len(s.slab)
	s.offsets = append(s.offsets, m)
}

func (s *stream) payload(values [][]byte) {
	if len(values) == 0 {
		s.slab = append(s.slab, '{')
	}
	for i, v := range values {
		s.slab = append(s.slab, s.names[i]...)
		s.slab = value.Append(s.slab, s.types[i], v)
	}
	s.slab = append(s.slab, '}')
}

// yieldRows calls yield for the rows of the slab, which share one string.
func (s *stream) yieldRows(yield func(Row) error) error {
	s.run.inCallback = true
	text, from := string(s.slab), 0
	for _, m := range s.offsets {
		row := Row{Key: text[from:m.key], Email: text[m.key:m.email], Phone: text[m.email:m.phone], Region: s.region,
			Push: text[m.phone:m.push], OptedOut: m.optedOut, TooLarge: m.tooLarge, Payload: text[m.push:m.payload]}
		if err := yield(row); err != nil {
			return err
		}
		from = m.payload
	}
	s.run.inCallback = false
	return nil
}

// appendKey appends a valid key, and nothing for an invalid one.
func appendKey(dst, key []byte) []byte {
	if !utf8.Valid(key) || slices.Contains(key, 0) {
		return dst
	}
	return append(dst, key...)
}

// appendClean appends text in a form that Postgres can store.
func appendClean(dst, text []byte) []byte {
	if utf8.Valid(text) && !slices.Contains(text, 0) {
		return append(dst, text...)
	}
	clean := strings.ToValidUTF8(string(text), "\uFFFD")
	return append(dst, strings.ReplaceAll(clean, "\x00", "\uFFFD")...)
}

// appendTokens appends a token, or a list of tokens as JSON.
func appendTokens(dst []byte, t value.Type, token []byte) []byte {
	if _, list := t.Element(); list && token != nil {
		return value.Append(dst, t, token)
	}
	var text string
	if t == value.JSON && len(token) > 0 && token[0] == '"' && json.Unmarshal(token, &text) == nil {
		return appendClean(dst, []byte(text))
	}
	if t == value.JSON && string(token) == "null" {
		return dst
	}
	return appendClean(dst, token)
}

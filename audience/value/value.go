// Package value writes the values of customers' databases as JSON. It guarantees: whatever
// text a database sends as a value of a type, the result is valid JSON.
//
// Package audience decides which type a column has.
package value

import (
	"bytes"
	"encoding/json"
	"unicode/utf8"
)

// Type is a type of a column for templates, or a list of one: text[].
type Type string

// The types of columns.
const (
	Text      Type = "text"
	Integer   Type = "integer"
	Number    Type = "number"
	Boolean   Type = "boolean"
	Timestamp Type = "timestamp" // RFC 3339 in a payload; without a zone in the source it counts as UTC
	Date      Type = "date"      // YYYY-MM-DD
	JSON      Type = "json"
	Other     Type = "other" // the text form of the source
)

// Append writes a value, in the text form of the source, as valid JSON. A value
// that does not match the type of its column is written as text.
func Append(dst []byte, t Type, text []byte) []byte {
	if text == nil {
		return append(dst, "null"...)
	}
	switch t {
	case Integer, Number:
		return appendNumber(dst, text)
	case Boolean:
		if IsTrue(text) {
			return append(dst, "true"...)
		}
		return append(dst, "false"...)
	case Timestamp:
		return appendTimestamp(dst, text)
	case Date:
		if isZeroDate(text) {
			return append(dst, "null"...)
		}
	case JSON:
		if json.Valid(text) {
			return append(dst, text...)
		}
	default:
		if element, ok := t.Element(); ok {
			return appendList(dst, element, text)
		}
	}
	return AppendString(dst, text)
}

// IsTrue reads a boolean or an integer.
func IsTrue(text []byte) bool {
	return len(text) > 0 && text[0] != 'f' && text[0] != 'F' && string(text) != "0"
}

func appendNumber(dst, text []byte) []byte {
	if IsNumber(text) {
		return append(dst, text...)
	}
	switch string(text) {
	case "NaN", "Infinity", "-Infinity", "inf", "-inf", "+Inf", "-Inf":
		return append(dst, "null"...)
	}
	return AppendString(dst, text)
}

// IsNumber follows the grammar of RFC 8259, section 6.
func IsNumber(text []byte) bool {
	i, n := 0, len(text)
	if i < n && text[i] == '-' {
		i++
	}
	from := i
	i = digits(text, i)
	if i == from || text[from] == '0' && i > from+1 {
		return false
	}
	if i < n && text[i] == '.' {
		from, i = i+1, digits(text, i+1)
		if i == from {
			return false
		}
	}
	if i < n && (text[i] == 'e' || text[i] == 'E') {
		i++
		if i < n && (text[i] == '+' || text[i] == '-') {
			i++
		}
		from, i = i, digits(text, i)
		if i == from {
			return false
		}
	}
	return i == n
}

// digits returns the end of the digits from i.
func digits(text []byte, i int) int {
	for i < len(text) && text[i] >= '0' && text[i] <= '9' {
		i++
	}
	return i
}

// isZeroDate reports dates without a month or a day, which MySQL can store.
func isZeroDate(text []byte) bool {
	return len(text) >= 10 && text[4] == '-' && (string(text[5:7]) == "00" || string(text[8:10]) == "00")
}

// appendTimestamp converts "2026-11-21 02:16:44.5+00" to RFC 3339. Instants that RFC
// 3339 cannot represent (infinity, years before 1) stay as text.
func appendTimestamp(dst, text []byte) []byte {
	if isZeroDate(text) {
		return append(dst, "null"...)
	}
	zone, ok := zoneOf(text)
	if !ok {
		return AppendString(dst, text)
	}
	dst = append(dst, '"')
	dst = append(dst, text[:10]...)
	dst = append(dst, 'T')
	dst = append(dst, text[11:zone]...)
	switch offset := text[zone:]; {
	case len(offset) == 0 || string(offset) == "+00":
		dst = append(dst, 'Z')
	case len(offset) == 3:
		dst = append(append(dst, offset...), ":00"...)
	default:
		dst = append(dst, offset...)
	}
	return append(dst, '"')
}

// shape of a timestamp up to its seconds: d is a digit.
const shape = "dddd-dd-dd dd:dd:dd"

// zoneOf returns the position of the offset, or false if text is not a timestamp.
func zoneOf(text []byte) (int, bool) {
	if len(text) < len(shape) {
		return 0, false
	}
	for i := range len(shape) {
		digit := text[i] >= '0' && text[i] <= '9'
		if digit != (shape[i] == 'd') || !digit && text[i] != shape[i] {
			return 0, false
		}
	}
	i := len(shape)
	if i < len(text) && text[i] == '.' {
		i = digits(text, i+1)
	}
	switch offset := text[i:]; {
	case len(offset) == 0:
		return i, true
	case offset[0] != '+' && offset[0] != '-', len(offset) != 3 && len(offset) != 6:
		return 0, false
	case digits(offset, 1) != 3, len(offset) == 6 && (offset[3] != ':' || digits(offset, 4) != 6):
		return 0, false
	}
	return i, true
}

const hexDigits = "0123456789abcdef"

// AppendString writes text as a JSON string. NUL, which neither Postgres nor a mail
// can contain, and bytes that are not UTF-8 become U+FFFD.
func AppendString(dst, text []byte) []byte {
	if !utf8.Valid(text) {
		text = bytes.ToValidUTF8(text, []byte("\uFFFD"))
	}
	dst = append(dst, '"')
	from := 0
	for i, c := range text {
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, text[from:i]...)
		dst = appendEscape(dst, c)
		from = i + 1
	}
	dst = append(dst, text[from:]...)
	return append(dst, '"')
}

func appendEscape(dst []byte, c byte) []byte {
	switch c {
	case 0:
		return append(dst, "\uFFFD"...)
	case '"', '\\':
		return append(dst, '\\', c)
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	}
	return append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
}

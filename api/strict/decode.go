// Package strict checks requests against their schemas in the contract, openapi.yaml. It
// guarantees: what it accepts has one meaning for every reader, and an error has all faults
// of a request, each with the pointer of its value and without the value itself, which may
// be a secret.
//
// Package api reads bodies, chooses the schema, and answers.
package strict

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"lemma"
)

// Limits of JSON. A decoded value takes up to 500 bytes: without maxValues, a body of
// 1 MiB would take 70 MB. MaxName bounds the pointers of faults, which consist of names.
const (
	maxDepth  = 64     // levels
	MaxName   = 1000   // bytes of a name
	maxValues = 20_000 // at all levels; of a bulk: for each item, and for the rest of the body
)

// Decode reads one JSON value and nothing after it. It is stricter than encoding/json
// where two readers could understand a text differently: names must be unique, text must
// be UTF-8, and so must escaped text, since a lone surrogate would become U+FFFD and two
// keys one. NUL is refused because Postgres cannot store it. Numbers keep their digits.
func Decode(body []byte) (any, error) {
	if !utf8.Valid(body) {
		return nil, malformed("bad_json", "this is not UTF-8", 0, 0)
	}
	return DecodeAround(body, "")
}

// DecodeAround is Decode for a body with a list whose items are decoded later: in the
// result, each of them is null.
func DecodeAround(body []byte, list string) (any, error) {
	if !json.Valid(body) {
		return nil, syntaxFault(body)
	}
	d := decoder{body: body, list: list}
	value, err := d.value()
	if err != nil {
		return nil, err
	}
	return value, Invalid(d.fields)
}

// textEnd returns the length of the quoted text with which raw begins.
func textEnd(raw []byte) int {
	for i := 1; i < len(raw); i++ {
		switch raw[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(raw)
}

var errTooDeep = malformed("too_deep", fmt.Sprintf("the JSON is nested deeper than %d levels", maxDepth), 0, 0)

// decoder reads a JSON text that encoding/json accepts. It takes a fifth of the time of
// json.Decoder's tokens, which allocate an error behind each text and number.
type decoder struct {
	body   []byte
	at     int    // the next byte
	list   string // the field whose items are not decoded
	values int    // read so far
	path   []any  // names and indexes of the value that is being read
	fields []lemma.Field
}

// fault records a fault of the value that is being read, up to one more than an answer
// lists.
func (d *decoder) fault(code, detail string) {
	if len(d.fields) > MaxFaults {
		return
	}
	var pointer strings.Builder
	for _, step := range d.path {
		pointer.WriteString(lemma.Pointer(fmt.Sprint(step)))
	}
	d.fields = append(d.fields, lemma.Field{Pointer: pointer.String(), Code: code, Detail: detail})
}

func (d *decoder) value() (any, error) {
	if len(d.path) > maxDepth {
		return nil, errTooDeep
	}
	if err := d.count(); err != nil {
		return nil, err
	}
	switch d.next() {
	case '{':
		return d.object()
	case '[':
		if d.list != "" && len(d.path) == 1 && d.path[0] == d.list {
			return d.items()
		}
		return d.array()
	case '"':
		text, raw := d.text()
		d.checkText(text, raw)
		return text, nil
	}
	switch word := string(d.scalar()); word {
	case "null":
		return nil, nil
	case "true", "false":
		return word == "true", nil
	default:
		return json.Number(word), nil
	}
}

func (d *decoder) count() error {
	if d.values++; d.values > maxValues {
		return malformed("too_many_values", fmt.Sprintf("the JSON has more than %d values", maxValues), 0, 0)
	}
	return nil
}

// next skips white space, commas and colons, and returns the byte behind them.
func (d *decoder) next() byte {
	for {
		switch c := d.body[d.at]; c {
		case ' ', '\t', '\r', '\n', ',', ':':
			d.at++
		default:
			return c
		}
	}
}

// ends skips an end of an object or an array, and reports whether there is one.
func (d *decoder) ends(with byte) bool {
	if d.next() != with {
		return false
	}
	d.at++
	return true
}

// scalar reads a number or a literal.
func (d *decoder) scalar() []byte {
	begun := d.at
	for d.at < len(d.body) && strings.IndexByte(" \t\r\n,]}", d.body[d.at]) < 0 {
		d.at++
	}
	return d.body[begun:d.at]
}

// text reads a quoted text, and returns it also as it is written.
func (d *decoder) text() (text string, raw []byte) {
	raw = d.body[d.at:]
	raw = raw[:textEnd(raw)]
	d.at += len(raw)
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1 : len(raw)-1]), raw
	}
	_ = json.Unmarshal(raw, &text) // it is valid
	return text, raw
}

func (d *decoder) checkText(text string, raw []byte) {
	if strings.IndexByte(text, 0) >= 0 {
		d.fault("nul", "must not contain NUL")
	}
	if strings.ContainsRune(text, utf8.RuneError) && hasLoneSurrogate(raw) {
		d.fault("bad_text", `must not contain half of a surrogate pair, such as \ud800 alone`)
	}
}

func (d *decoder) object() (any, error) {
	object := map[string]any{}
	for d.at++; !d.ends('}'); {
		name, raw := d.text()
		if len(name) > MaxName {
			return nil, malformed("name_too_long", fmt.Sprintf("a name in the JSON has more than %d bytes", MaxName), 0, 0)
		}
		d.path = append(d.path, name)
		d.checkText(name, raw)
		if _, twice := object[name]; twice {
			d.fault("repeated", "this name is given more than once")
		}
		value, err := d.value()
		if err != nil {
			return nil, err
		}
		object[name] = value
		d.path = d.path[:len(d.path)-1]
	}
	return object, nil
}

func (d *decoder) array() (any, error) {
	array := []any{}
	for d.at++; !d.ends(']'); {
		d.path = append(d.path, len(array))
		value, err := d.value()
		if err != nil {
			return nil, err
		}
		array = append(array, value)
		d.path = d.path[:len(d.path)-1]
	}
	return array, nil
}

// items counts the items of a list.
func (d *decoder) items() (any, error) {
	array := []any{}
	for d.at++; !d.ends(']'); array = append(array, nil) {
		if err := d.count(); err != nil {
			return nil, err
		}
		d.skip()
	}
	return array, nil
}

// skip skips a value.
func (d *decoder) skip() {
	for depth := 0; ; {
		switch d.next() {
		case '{', '[':
			depth++
			d.at++
		case '}', ']':
			depth--
			d.at++
		case '"':
			d.at += textEnd(d.body[d.at:])
		default:
			d.scalar()
		}
		if depth == 0 {
			return
		}
	}
}

// hasLoneSurrogate reports whether JSON escapes one half of a surrogate pair without the
// other, which is no text.
func hasLoneSurrogate(raw []byte) bool {
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		i++ // the escaped character
		unit, ok := unitAt(raw, i)
		if !ok || !utf16.IsSurrogate(unit) {
			continue
		}
		if low, ok := unitAt(raw, i+6); !ok || raw[i+5] != '\\' || utf16.DecodeRune(unit, low) == utf8.RuneError {
			return true
		}
		i += 6
	}
	return false
}

// unitAt reads the uXXXX of an escape.
func unitAt(raw []byte, i int) (unit rune, ok bool) {
	if i+5 > len(raw) || raw[i] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(raw[i+1:i+5]), 16, 16)
	return rune(n), err == nil
}

// syntaxFault is the position at which the JSON is malformed. The decoder's message
// quotes the body, so it is not used.
func syntaxFault(body []byte) error {
	d := json.NewDecoder(bytes.NewReader(body))
	var first json.RawMessage
	err := d.Decode(&first)
	if err == nil {
		rest := bytes.TrimLeft(body[d.InputOffset():], " \t\r\n")
		line, column := position(body, int64(len(body)-len(rest)))
		return malformed("trailing_bytes", "there is more in the body after its JSON value", line, column)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return malformed("bad_json", "the JSON ends too early", 0, 0)
	}
	offset := d.InputOffset()
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		if syntax.Error() == "exceeded max depth" {
			return errTooDeep
		}
		offset = max(offset, syntax.Offset-1)
	}
	for offset > 0 && offset <= int64(len(body)) && 'a' <= body[offset-1] && body[offset-1] <= 'z' {
		offset-- // to the begin of a word such as nope
	}
	line, column := position(body, offset)
	return malformed("bad_json", "the body is not JSON", line, column)
}

// position returns the line and column of an offset in bytes, both from 1.
func position(body []byte, offset int64) (line, column int) {
	before := body[:min(max(offset, 0), int64(len(body)))]
	line = 1 + bytes.Count(before, []byte("\n"))
	return line, 1 + utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:])
}

// Malformed is the fault of a text that cannot be read as JSON.
type Malformed struct {
	Code, Detail string
	Line, Column int // from 1, or 0
}

func (m *Malformed) Error() string { return m.Detail }

func malformed(code, detail string, line, column int) error {
	return &Malformed{code, detail, line, column}
}

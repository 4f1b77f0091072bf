package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"lemma"
)

// Limits of JSON. A decoded value takes up to 500 bytes: without maxValues, a body of
// 1 MiB would take 70 MB. maxMember bounds the pointers of faults, which consist of names.
const (
	maxDepth  = 64     // levels
	maxMember = 1000   // bytes of a name
	maxValues = 20_000 // at all levels; of a bulk: for each item, and for the rest of the body
)

// decode reads one JSON value and nothing after it. It is stricter than encoding/json
// where two readers could understand a text differently: names must be unique, text must
// be UTF-8, and so must escaped text, since a lone surrogate would become U+FFFD and two
// keys one. NUL is refused because Postgres cannot store it. Numbers keep their digits.
func decode(body []byte) (any, error) {
	if !utf8.Valid(body) {
		return nil, malformed("bad_json", "this is not UTF-8", 0, 0)
	}
	return decodeAround(body, "")
}

// decodeAround is decode for a body with a list whose items are decoded later: in the
// result, each of them is null.
func decodeAround(body []byte, list string) (any, error) {
	d := decoder{json: json.NewDecoder(bytes.NewReader(body)), body: body, list: list}
	d.json.UseNumber()
	value, err := d.value()
	if err != nil {
		return nil, d.explain(err)
	}
	if _, err := d.json.Token(); !errors.Is(err, io.EOF) {
		line, column := position(body, d.json.InputOffset())
		return nil, malformed("trailing_bytes", "there is more in the body after its JSON value", line, column)
	}
	return value, invalid(d.fields)
}

type decoder struct {
	json   *json.Decoder
	body   []byte
	list   string // the field whose items are not decoded
	values int    // read so far
	path   []any  // names and indexes of the value that is being read
	fields []lemma.Field
}

var (
	errTooDeep  = errors.New("nested too deeply")
	errLongName = errors.New("a name is too long")
	errTooMany  = errors.New("too many values")
)

// fault records a fault of the value that is being read, up to one more than an answer
// lists.
func (d *decoder) fault(code, detail string) {
	if len(d.fields) > maxFaults {
		return
	}
	var pointer strings.Builder
	for _, step := range d.path {
		pointer.WriteString(lemma.Pointer(fmt.Sprint(step)))
	}
	d.fields = append(d.fields, lemma.Field{Pointer: pointer.String(), Code: code, Detail: detail})
}

// within reads the value behind a name or an index.
func (d *decoder) within(step any) (any, error) {
	d.path = append(d.path, step)
	defer func() { d.path = d.path[:len(d.path)-1] }()
	return d.value()
}

func (d *decoder) value() (any, error) {
	if len(d.path) > maxDepth {
		return nil, errTooDeep
	}
	if err := d.count(); err != nil {
		return nil, err
	}
	before := d.json.InputOffset()
	token, err := d.json.Token()
	if err != nil {
		return nil, err
	}
	switch {
	case token == json.Delim('{'):
		return d.object()
	case token == json.Delim('[') && d.list != "" && len(d.path) == 1 && d.path[0] == d.list:
		return d.items()
	case token == json.Delim('['):
		return d.array()
	}
	if text, ok := token.(string); ok {
		d.checkText(text, before)
	}
	return token, nil
}

func (d *decoder) count() error {
	if d.values++; d.values > maxValues {
		return errTooMany
	}
	return nil
}

func (d *decoder) object() (any, error) {
	object := map[string]any{}
	for d.json.More() {
		before := d.json.InputOffset()
		token, err := d.json.Token()
		if err != nil {
			return nil, err
		}
		name, _ := token.(string)
		if len(name) > maxMember {
			return nil, errLongName
		}
		_, twice := object[name]
		d.checkName(name, twice, before)
		if object[name], err = d.within(name); err != nil {
			return nil, err
		}
	}
	_, err := d.json.Token()
	return object, err
}

func (d *decoder) array() (any, error) {
	array := []any{}
	for d.json.More() {
		v, err := d.within(len(array))
		if err != nil {
			return nil, err
		}
		array = append(array, v)
	}
	_, err := d.json.Token()
	return array, err
}

// items counts the items of a list.
func (d *decoder) items() (any, error) {
	array := []any{}
	for d.json.More() {
		if err := d.count(); err != nil {
			return nil, err
		}
		var skipped json.RawMessage
		if err := d.json.Decode(&skipped); err != nil {
			return nil, err
		}
		array = append(array, nil)
	}
	_, err := d.json.Token()
	return array, err
}

// checkName checks a name, which must be unique in its object.
func (d *decoder) checkName(name string, twice bool, after int64) {
	d.path = append(d.path, name)
	defer func() { d.path = d.path[:len(d.path)-1] }()
	d.checkText(name, after)
	if twice {
		d.fault("repeated", "this name is given more than once")
	}
}

// checkText checks a text, which the body has after an offset.
func (d *decoder) checkText(text string, after int64) {
	if strings.ContainsRune(text, 0) {
		d.fault("nul", "must not contain NUL")
	}
	if strings.ContainsRune(text, utf8.RuneError) && hasLoneSurrogate(d.body[after:d.json.InputOffset()]) {
		d.fault("bad_text", `must not contain half of a surrogate pair, such as \ud800 alone`)
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

// explain returns the position at which the JSON is malformed. The decoder's message
// quotes the body, so it is not used.
func (d *decoder) explain(err error) error {
	if errors.Is(err, errTooDeep) {
		return malformed("too_deep", fmt.Sprintf("the JSON is nested deeper than %d levels", maxDepth), 0, 0)
	}
	if errors.Is(err, errLongName) {
		return malformed("name_too_long", fmt.Sprintf("a name in the JSON has more than %d bytes", maxMember), 0, 0)
	}
	if errors.Is(err, errTooMany) {
		return malformed("too_many_values", fmt.Sprintf("the JSON has more than %d values", maxValues), 0, 0)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return malformed("bad_json", "the JSON ends too early", 0, 0)
	}
	offset := d.json.InputOffset()
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		offset = max(offset, syntax.Offset-1)
	}
	line, column := position(d.body, offset)
	return malformed("bad_json", "the body is not JSON", line, column)
}

// position returns the line and column of an offset in bytes, both from 1.
func position(body []byte, offset int64) (line, column int) {
	before := body[:min(max(offset, 0), int64(len(body)))]
	line = 1 + bytes.Count(before, []byte("\n"))
	return line, 1 + utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:])
}

func malformed(code, detail string, line, column int) error {
	return &refusal{status: http.StatusBadRequest, code: code, detail: detail,
		fields: []lemma.Field{{Pointer: "", Code: code, Detail: detail, Line: line, Column: column}}}
}

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

// maxDepth is how deeply JSON may be nested.
const maxDepth = 64

// decode reads one JSON value and nothing after it. It is stricter than
// encoding/json where that would let two readers see two things: names must
// not repeat, text must be UTF-8, and so must what its escapes say: half of a
// surrogate pair would be read as U+FFFD, and two keys become one. NUL is refused because Postgres has no place
// for it. Numbers keep their digits.
func decode(body []byte) (any, error) {
	if !utf8.Valid(body) {
		return nil, malformed("bad_json", "this is not UTF-8", 0, 0)
	}
	return decodeAround(body, "")
}

// decodeAround is decode for a body with a list whose items are looked at one
// by one, later: each of them is null in the answer, whatever it is.
func decodeAround(body []byte, list string) (any, error) {
	d := decoder{json: json.NewDecoder(bytes.NewReader(body)), body: body, list: list}
	d.json.UseNumber()
	value, err := d.value("", 0)
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
	list   string // the field of the body whose items are not looked at
	fields []lemma.Field
}

var errTooDeep = errors.New("nested too deeply")

func (d *decoder) value(pointer string, depth int) (any, error) {
	if depth > maxDepth {
		return nil, errTooDeep
	}
	before := d.json.InputOffset()
	token, err := d.json.Token()
	if err != nil {
		return nil, err
	}
	switch {
	case token == json.Delim('{'):
		return d.object(pointer, depth)
	case token == json.Delim('[') && d.list != "" && pointer == "/"+d.list:
		return d.items()
	case token == json.Delim('['):
		return d.array(pointer, depth)
	}
	if text, ok := token.(string); ok {
		d.checkText(pointer, text, before)
	}
	return token, nil
}

func (d *decoder) object(pointer string, depth int) (any, error) {
	object := map[string]any{}
	for d.json.More() {
		before := d.json.InputOffset()
		token, err := d.json.Token()
		if err != nil {
			return nil, err
		}
		name, _ := token.(string)
		at := pointer + "/" + pointerToken(name)
		d.checkText(at, name, before)
		if _, twice := object[name]; twice {
			d.fields = append(d.fields, lemma.Field{Pointer: at, Code: "repeated", Detail: "this name is given more than once"})
		}
		if object[name], err = d.value(at, depth+1); err != nil {
			return nil, err
		}
	}
	_, err := d.json.Token()
	return object, err
}

func (d *decoder) array(pointer string, depth int) (any, error) {
	array := []any{}
	for d.json.More() {
		v, err := d.value(fmt.Sprintf("%s/%d", pointer, len(array)), depth+1)
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
		var skipped json.RawMessage
		if err := d.json.Decode(&skipped); err != nil {
			return nil, err
		}
		array = append(array, nil)
	}
	_, err := d.json.Token()
	return array, err
}

// checkText looks at a text, which the body has after an offset.
func (d *decoder) checkText(pointer, text string, after int64) {
	if strings.ContainsRune(text, 0) {
		d.fields = append(d.fields, lemma.Field{Pointer: pointer, Code: "nul", Detail: "must not contain NUL"})
	}
	if strings.ContainsRune(text, utf8.RuneError) && halved(d.body[after:d.json.InputOffset()]) {
		d.fields = append(d.fields, lemma.Field{Pointer: pointer, Code: "bad_text", Detail: `must not contain half of a surrogate pair, such as \ud800 alone`})
	}
}

// halved tells whether JSON escapes one half of a surrogate pair without the
// other, which is no text.
func halved(raw []byte) bool {
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		i++ // what is escaped
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

// explain says where the JSON breaks off. The decoder's own words quote the
// body, so they are not used.
func (d *decoder) explain(err error) error {
	if errors.Is(err, errTooDeep) {
		return malformed("too_deep", fmt.Sprintf("the JSON is nested deeper than %d levels", maxDepth), 0, 0)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return malformed("bad_json", "the JSON ends too early", 0, 0)
	}
	offset := d.json.InputOffset()
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		offset = max(offset, syntax.Offset-1)
	}
	line, column := position(d.body, offset)
	return malformed("bad_json", "the body is not JSON", line, column)
}

// position turns an offset in bytes into line and column, both from 1.
func position(body []byte, offset int64) (line, column int) {
	before := body[:min(max(offset, 0), int64(len(body)))]
	line = 1 + bytes.Count(before, []byte("\n"))
	return line, 1 + utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:])
}

func malformed(code, detail string, line, column int) error {
	return &refusal{status: http.StatusBadRequest, code: code, detail: detail,
		fields: []lemma.Field{{Pointer: "", Code: code, Detail: detail, Line: line, Column: column}}}
}

// pointerToken escapes a name for a JSON pointer (RFC 6901, 3).
func pointerToken(name string) string { return escapes.Replace(name) }

// escapes is made once: making it costs more than reading a small body.
var escapes = strings.NewReplacer("~", "~0", "/", "~1")

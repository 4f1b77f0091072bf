package graph

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"lemma"
)

// maxDepth is how deep a document may be nested: a node's data needs a few levels.
const maxDepth = 32

// Decode reads a definition strictly: unknown fields, names in another case, repeated
// names, values of another type and numbers beyond a double are rejected, all at once and
// each with its pointer. A null counts as absent. Compile checks the meaning. It waits until the
// workspace has a processor.
func Decode(workspace uuid.UUID, raw []byte) (*Definition, error) {
	defer compiling.Enter(workspace)()
	return Read(raw)
}

// Read is Decode that waits for nothing, for work that holds locks.
func Read(raw []byte) (*Definition, error) {
	d, _, faults := decode(raw)
	if len(faults) > 0 {
		return nil, invalid(faults)
	}
	return d, nil
}

// decode also returns the valid parts beside the faults, so that Compile can check them,
// and the document as a tree: which fields are present.
func decode(raw []byte) (*Definition, map[string]any, []lemma.Field) {
	d := &Definition{}
	if len(raw) > MaxDefinition {
		return d, nil, []lemma.Field{{Code: "too_large", Detail: fmt.Sprintf("a definition has at most %d bytes", MaxDefinition)}}
	}
	if !utf8.Valid(raw) {
		return d, nil, []lemma.Field{{Code: "syntax", Detail: "must be UTF-8"}}
	}
	r := reader{raw: raw, dec: json.NewDecoder(bytes.NewReader(raw))}
	r.dec.UseNumber()
	tree, err := r.document()
	if err != nil {
		return d, nil, []lemma.Field{r.syntax(err)}
	}
	top, ok := tree.(map[string]any)
	if !ok {
		return d, nil, []lemma.Field{{Code: "wrong_type", Detail: "must be an object"}}
	}
	r.bind("", top, reflect.ValueOf(d).Elem())
	if large := sizes(d); len(large) > 0 {
		return d, nil, large
	}
	inherit(d, top)
	return d, top, r.faults
}

// maxFaults bounds the faults of form: a document of 256 KiB can have some ten thousand,
// and each is compared with all that follow from it.
const maxFaults = 200

func invalid(faults []lemma.Field) error {
	return &lemma.Error{Kind: lemma.Invalid, Message: "the definition is not valid", Fields: faults}
}

// at appends reference tokens to a JSON pointer (RFC 6901).
func at(pointer string, tokens ...string) string { return pointer + lemma.Pointer(tokens...) }

func index(pointer string, i int) string { return pointer + "/" + strconv.Itoa(i) }

// reader turns a text into a tree, and the tree into a Definition.
type reader struct {
	raw    []byte
	dec    *json.Decoder
	faults []lemma.Field
}

func (r *reader) fault(pointer, code, format string, args ...any) {
	if len(r.faults) >= maxFaults {
		return
	}
	r.faults = append(r.faults, lemma.Field{Pointer: pointer, Code: code, Detail: fmt.Sprintf(format, args...)})
}

var errDeep = fmt.Errorf("the document is nested more than %d levels deep", maxDepth)

func (r *reader) document() (any, error) {
	v, err := r.value("", 0)
	if err != nil {
		return nil, err
	}
	if _, err := r.dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the document")
	}
	return v, nil
}

// syntax finds where the text stops being JSON. It parses the whole text again, since a
// decoder of tokens reports the place less exactly.
func (r *reader) syntax(err error) lemma.Field {
	offset := r.dec.InputOffset()
	var whole any
	if broken, ok := errors.AsType[*json.SyntaxError](json.Unmarshal(r.raw, &whole)); ok {
		offset, err = broken.Offset-1, broken
		if broken.Error() == "unexpected end of JSON input" {
			offset = int64(len(r.raw))
		}
	}
	before := r.raw[:min(max(offset, 0), int64(len(r.raw)))]
	line := 1 + bytes.Count(before, []byte("\n"))
	column := 1 + utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:])
	return lemma.Field{Code: "syntax", Detail: err.Error(), Line: line, Column: column}
}

func (r *reader) value(pointer string, depth int) (any, error) {
	token, err := r.dec.Token()
	if err != nil {
		return nil, err
	}
	if depth > maxDepth {
		return nil, errDeep
	}
	switch token {
	case json.Delim('{'):
		return r.object(pointer, depth)
	case json.Delim('['):
		return r.array(pointer, depth)
	}
	return token, nil
}

func (r *reader) object(pointer string, depth int) (any, error) {
	object := map[string]any{}
	for r.dec.More() {
		token, err := r.dec.Token()
		if err != nil {
			return nil, err
		}
		name, ok := token.(string)
		if !ok {
			return nil, errors.New("a name is a string")
		}
		v, err := r.value(at(pointer, name), depth+1)
		if err != nil {
			return nil, err
		}
		if _, twice := object[name]; twice {
			r.fault(at(pointer, name), "duplicate", "must occur once in its object")
		}
		object[name] = v
	}
	_, err := r.dec.Token()
	return object, err
}

func (r *reader) array(pointer string, depth int) (any, error) {
	array := []any{}
	for r.dec.More() {
		v, err := r.value(index(pointer, len(array)), depth+1)
		if err != nil {
			return nil, err
		}
		array = append(array, v)
	}
	_, err := r.dec.Token()
	return array, err
}

// bind stores a value of the tree in its field, or reports that it does not fit.
func (r *reader) bind(pointer string, v any, to reflect.Value) {
	if to.Type() == reflect.TypeFor[json.RawMessage]() {
		r.bindText(pointer, v, to)
		return
	}
	switch to.Kind() {
	case reflect.Struct:
		r.bindStruct(pointer, v, to)
	case reflect.Map:
		r.bindMap(pointer, v, to)
	case reflect.Slice:
		r.bindSlice(pointer, v, to)
	case reflect.Pointer:
		to.Set(reflect.New(to.Type().Elem()))
		r.bind(pointer, v, to.Elem())
	case reflect.String:
		if s, ok := as[string](r, pointer, v, "a string"); ok {
			to.SetString(s)
		}
	case reflect.Bool:
		if b, ok := as[bool](r, pointer, v, "true or false"); ok {
			to.SetBool(b)
		}
	case reflect.Int:
		r.bindInt(pointer, v, to)
	default:
		panic("graph: a definition has a field of kind " + to.Kind().String())
	}
}

func as[T any](r *reader, pointer string, v any, what string) (T, bool) {
	t, ok := v.(T)
	if !ok {
		r.fault(pointer, "wrong_type", "must be %s, not %s", what, kindOf(v))
	}
	return t, ok
}

func kindOf(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case string:
		return "a string"
	case bool:
		return "a boolean"
	case json.Number:
		return "a number"
	case []any:
		return "an array"
	}
	return "an object"
}

func (r *reader) bindStruct(pointer string, v any, to reflect.Value) {
	object, ok := as[map[string]any](r, pointer, v, "an object")
	if !ok {
		return
	}
	fields := fieldsOf(to.Type())
	for name, value := range object {
		i, known := fields[name]
		switch {
		case !known && len(r.faults) >= maxFaults:
		case !known:
			r.fault(at(pointer, name), "unknown_field", "there is no such field%s", suggestion(name, object, to.Type()))
		case value == nil:
			delete(object, name)
		default:
			r.bind(at(pointer, name), value, to.Field(i))
		}
	}
}

// suggestion is the nearest field that the object can have: of a node, one of its type.
func suggestion(name string, object map[string]any, t reflect.Type) string {
	names := sorted(fieldsOf(t))
	if kind, _ := object["type"].(string); t == reflect.TypeFor[Node]() && rules[kind].required != nil {
		names = fieldsFor(kind)
	}
	if near := didYouMean(name, names); near != "" {
		return near
	}
	return "; there are " + strings.Join(names, ", ")
}

// fieldsOf returns the fields of a struct by their names in JSON.
func fieldsOf(t reflect.Type) map[string]int {
	fields := map[string]int{}
	for i := range t.NumField() {
		if !t.Field(i).IsExported() {
			continue
		}
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		fields[name] = i
	}
	return fields
}

func (r *reader) bindMap(pointer string, v any, to reflect.Value) {
	object, ok := as[map[string]any](r, pointer, v, "an object")
	if !ok {
		return
	}
	to.Set(reflect.MakeMapWithSize(to.Type(), len(object)))
	for name, value := range object {
		one := reflect.New(to.Type().Elem()).Elem()
		r.bind(at(pointer, name), value, one)
		to.SetMapIndex(reflect.ValueOf(name), one)
	}
}

func (r *reader) bindSlice(pointer string, v any, to reflect.Value) {
	array, ok := as[[]any](r, pointer, v, "an array")
	if !ok {
		return
	}
	to.Set(reflect.MakeSlice(to.Type(), len(array), len(array)))
	for i, value := range array {
		r.bind(index(pointer, i), value, to.Index(i))
	}
}

func (r *reader) bindInt(pointer string, v any, to reflect.Value) {
	number, ok := as[json.Number](r, pointer, v, "a number")
	if !ok {
		return
	}
	n, err := strconv.ParseInt(number.String(), 10, 32)
	if err != nil {
		r.fault(pointer, "wrong_type", "must be a whole number of at most 2147483647")
		return
	}
	to.SetInt(n)
}

// tidy sorts faults by place, and drops those that follow from a fault of form: a field
// that could not be read is not also missing.
func tidy(form, meaning []lemma.Field) []lemma.Field {
	all := slices.Clone(form)
	for _, m := range meaning {
		follows := slices.ContainsFunc(form, func(f lemma.Field) bool {
			return f.Code != "unknown_field" && (m.Pointer == f.Pointer || strings.HasPrefix(m.Pointer, f.Pointer+"/"))
		})
		if !follows {
			all = append(all, m)
		}
	}
	if slices.ContainsFunc(all, breaksAPath) { // nodes may be unreachable because of it
		all = slices.DeleteFunc(all, func(f lemma.Field) bool { return f.Code == "unreachable" })
	}
	slices.SortStableFunc(all, func(a, b lemma.Field) int {
		return cmpOr(comparePointers(a.Pointer, b.Pointer), a.Line-b.Line, a.Column-b.Column, strings.Compare(a.Code, b.Code))
	})
	return slices.CompactFunc(all, func(a, b lemma.Field) bool { return a == b })
}

// breaksAPath reports whether a fault may remove a path out of a node.
func breaksAPath(f lemma.Field) bool {
	switch f.Code {
	case "unknown_node", "dead_end":
		return true
	case "unknown_field":
		return strings.HasPrefix(f.Pointer, "/nodes/")
	case "not_allowed": // of a node's type
		return strings.HasPrefix(f.Pointer, "/nodes/") && strings.HasSuffix(f.Pointer, "/type")
	}
	return false
}

func cmpOr(answers ...int) int {
	for _, a := range answers {
		if a != 0 {
			return a
		}
	}
	return 0
}

// comparePointers orders by place, with array items by number.
func comparePointers(a, b string) int {
	return slices.CompareFunc(strings.Split(a, "/"), strings.Split(b, "/"), func(a, b string) int {
		m, errA := strconv.Atoi(a)
		n, errB := strconv.Atoi(b)
		if errA == nil && errB == nil && m != n {
			return m - n
		}
		return strings.Compare(a, b)
	})
}

var nodeFields = fieldsOf(reflect.TypeFor[Node]())

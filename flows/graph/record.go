package graph

import (
	"encoding/json"
	"errors"
	"reflect"
	"strconv"
	"strings"
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
)

// Names of the variables' types in the checker.
const (
	typeProfile = "profile_row"
	typeTrigger = "trigger_event"
	typeEvent   = "received_event"
	typeEvents  = "past_events"
	typeSeen    = "past_event"
)

var variables = map[string]*cel.Type{
	"profile": cel.ObjectType(typeProfile),
	"trigger": cel.ObjectType(typeTrigger),
	"event":   cel.ObjectType(typeEvent),
	"events":  cel.ObjectType(typeEvents),
	"now":     cel.TimestampType,
}

var (
	properties = cel.MapType(cel.StringType, cel.DynType)
	eventShape = map[string]*cel.Type{"name": cel.StringType, "source_id": cel.StringType, "at": cel.TimestampType,
		"properties": properties}
	seenShape = map[string]*cel.Type{"times": cel.IntType, "first_at": cel.TimestampType, "last_at": cel.TimestampType, "last": properties}
)

// columnTypes are the types of an audience's columns in expressions. Each may be null, and
// the checker then allows comparisons with null.
var columnTypes = map[string]*cel.Type{
	"text":      cel.NullableType(cel.StringType),
	"integer":   cel.NullableType(cel.IntType),
	"number":    cel.NullableType(cel.DoubleType),
	"boolean":   cel.NullableType(cel.BoolType),
	"timestamp": cel.TimestampType,
	"date":      cel.TimestampType,
}

// world gives the checker the existing fields, and the interpreter access to them.
type world struct {
	*types.Registry
	columns map[string]string // nil: not known
}

func newWorld(columns map[string]string) *world {
	registry, err := types.NewRegistry()
	if err != nil {
		panic("graph: " + err.Error())
	}
	return &world{registry, columns}
}

// keep forgets all columns but some: conditions live as long as their graph, and an audience may have
// hundreds of columns.
func (w *world) keep(some map[string]bool) {
	kept := map[string]string{}
	for name := range some {
		if kind, exists := w.columns[name]; exists {
			kept[name] = kind
		}
	}
	if w.columns != nil {
		w.columns = kept
	}
}

// FindStructType finds the types of the variables.
func (w *world) FindStructType(name string) (*types.Type, bool) {
	switch name {
	case typeProfile, typeTrigger, typeEvent, typeEvents, typeSeen:
		return types.NewTypeTypeWithParam(types.NewObjectType(name)), true
	}
	return w.Registry.FindStructType(name)
}

// FindStructFieldNames is for messages only, and empty.
func (w *world) FindStructFieldNames(name string) ([]string, bool) {
	if _, ours := w.FindStructType(name); ours {
		return nil, true
	}
	return w.Registry.FindStructFieldNames(name)
}

// FindStructFieldType returns the type of a field. Every column is found: reading reports
// missing ones better.
func (w *world) FindStructFieldType(name, field string) (*types.FieldType, bool) {
	t, ok := w.fieldType(name, field)
	if !ok {
		return w.Registry.FindStructFieldType(name, field)
	}
	return &types.FieldType{
		Type:  t,
		IsSet: func(target any) bool { r, ok := target.(*record); return ok && r.has(field) },
		GetFrom: func(target any) (any, error) {
			r, ok := target.(*record)
			if !ok {
				return nil, &valueError{"a value is not what the expression takes it for"}
			}
			return r.get(field)
		},
	}, true
}

func (w *world) fieldType(name, field string) (*types.Type, bool) {
	switch name {
	case typeProfile:
		if t, ok := columnTypes[w.columns[field]]; ok {
			return t, true
		}
		return types.DynType, true
	case typeEvents:
		return types.NewObjectType(typeSeen), true
	case typeTrigger, typeEvent:
		t, ok := eventShape[field]
		return t, ok
	case typeSeen:
		t, ok := seenShape[field]
		return t, ok
	}
	return nil, false
}

// NativeToValue converts decoded JSON.
func (w *world) NativeToValue(value any) ref.Val {
	switch v := value.(type) {
	case json.Number:
		return number(v.String())
	case map[string]any:
		return types.NewStringInterfaceMap(w, v)
	case []any:
		return types.NewDynamicList(w, v)
	}
	return w.Registry.NativeToValue(value)
}

// exactly is where doubles begin to skip whole numbers: from here on two ids could be
// equal.
const exactly = 1 << 53

// number parses a number of a JSON text. It is a double, whole or not, so that a total of
// 10 has the type of 10.5. A whole number that a double may not hold is kept exactly, and
// one beyond 64 bits is an error.
func number(text string) ref.Val {
	if len(text) >= len("9007199254740992") && !strings.ContainsAny(text, ".eE") {
		return large(text)
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return types.WrapErr(&valueError{"a number is too large"})
	}
	return types.Double(f)
}

func large(text string) ref.Val {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		if -exactly < n && n < exactly {
			return types.Double(n)
		}
		return types.Int(n)
	}
	if n, err := strconv.ParseUint(text, 10, 64); err == nil {
		return types.Uint(n)
	}
	return types.WrapErr(&valueError{"a whole number has more than 64 bits: send such an id as a text"})
}

// valueError is about a value and quotes none, so that it may be shown.
type valueError struct{ text string }

func (e *valueError) Error() string { return e.text }

// record is a variable with fields.
type record struct {
	world  *world
	kind   string
	values map[string]any
}

// has reports whether a field has a value; null is none.
func (r *record) has(field string) bool {
	if r.values[field] == nil {
		return false
	}
	if r.kind == typeEvents {
		n, err := toInt(asMap(r.values[field])["times"])
		return err == nil && n.(types.Int) > 0
	}
	return true
}

func asMap(v any) map[string]any {
	m, _ := v.(map[string]any)
	return m
}

// get returns a field in its type.
func (r *record) get(field string) (any, error) {
	v, there := r.values[field]
	switch r.kind {
	case typeEvents:
		return &record{r.world, typeSeen, asMap(v)}, nil
	case typeSeen:
		return seen(field, v)
	}
	if !there {
		return nil, &valueError{"there is no " + field[:min(len(field), maxName)]}
	}
	if v == nil {
		return types.NullValue, nil
	}
	kind := r.world.columns[field]
	if r.kind != typeProfile {
		kind = ""
		if field == "at" {
			kind = "timestamp"
		}
	}
	answer, err := convert(kind, v)
	if err != nil {
		return nil, &valueError{field + " " + err.Error()}
	}
	return answer, nil
}

// seen returns a field of an event that may never have arrived.
func seen(field string, v any) (any, error) {
	switch {
	case v == nil && field == "times":
		return types.IntZero, nil
	case v == nil && field == "last":
		return map[string]any{}, nil
	case v == nil:
		return types.NullValue, nil
	case field == "times":
		return toInt(v)
	case field == "last":
		if decode, ok := v.(func() map[string]any); ok {
			return decode(), nil
		}
		return v, nil
	}
	return toTimestamp(v)
}

// convert reads a value as a column's type. A source may return what its column does not
// promise; the audience then passes it on as a text.
func convert(kind string, v any) (any, error) {
	switch kind {
	case "text":
		if s, ok := v.(string); ok {
			return types.String(s), nil
		}
		return nil, errors.New("holds no text")
	case "boolean":
		if b, ok := v.(bool); ok {
			return types.Bool(b), nil
		}
		return nil, errors.New("holds neither true nor false")
	case "integer":
		return toInt(v)
	case "number":
		return toDouble(v)
	case "timestamp":
		return toTimestamp(v)
	case "date":
		return toDate(v)
	}
	return v, nil
}

func toInt(v any) (ref.Val, error) {
	switch v := v.(type) {
	case int:
		return types.Int(v), nil
	case int64:
		return types.Int(v), nil
	case float64:
		if n := int64(v); float64(n) == v && v < 1<<63 {
			return types.Int(n), nil
		}
	case json.Number:
		if n, err := strconv.ParseInt(v.String(), 10, 64); err == nil {
			return types.Int(n), nil
		}
	}
	return nil, errors.New("holds no whole number of 64 bits")
}

func toDouble(v any) (ref.Val, error) {
	switch v := v.(type) {
	case float64:
		return types.Double(v), nil
	case int:
		return types.Double(v), nil
	case int64:
		return types.Double(v), nil
	case json.Number:
		if f, err := v.Float64(); err == nil {
			return types.Double(f), nil
		}
	}
	return nil, errors.New("holds no number")
}

func toTimestamp(v any) (ref.Val, error) {
	switch v := v.(type) {
	case time.Time:
		return types.Timestamp{Time: v}, nil
	case string:
		if t, err := time.Parse(time.RFC3339Nano, v); err == nil {
			return types.Timestamp{Time: t}, nil
		}
	}
	return nil, errors.New("holds no timestamp in RFC 3339")
}

func toDate(v any) (ref.Val, error) {
	if s, ok := v.(string); ok {
		if t, err := time.Parse(time.DateOnly, s); err == nil {
			return types.Timestamp{Time: t}, nil
		}
	}
	return nil, errors.New("holds no date YYYY-MM-DD")
}

// The methods below implement ref.Val.

// ConvertToNative is not supported: records stay inside the interpreter.
func (r *record) ConvertToNative(reflect.Type) (any, error) {
	return nil, &valueError{"a record cannot be converted"}
}

// ConvertToType supports the record's own type only.
func (r *record) ConvertToType(t ref.Type) ref.Val {
	if t.TypeName() == types.TypeType.TypeName() {
		return types.NewObjectType(r.kind)
	}
	return types.WrapErr(&valueError{"a record cannot be converted"})
}

// Equal is not supported: the fields are not read.
func (r *record) Equal(ref.Val) ref.Val { return types.False }

// Type is the record's type.
func (r *record) Type() ref.Type { return types.NewObjectType(r.kind) }

// Value is the record itself.
func (r *record) Value() any { return r }

// Get reads a field by a computed name.
func (r *record) Get(name ref.Val) ref.Val {
	field, ok := name.(types.String)
	if !ok {
		return types.WrapErr(&valueError{"a name is not a text"})
	}
	v, err := r.get(string(field))
	if err != nil {
		return types.WrapErr(err)
	}
	return r.world.NativeToValue(v)
}

// IsSet checks a field by a computed name.
func (r *record) IsSet(name ref.Val) ref.Val {
	field, ok := name.(types.String)
	return types.Bool(ok && r.has(string(field)))
}

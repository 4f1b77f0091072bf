package strict

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"

	"lemma"
)

// MaxFaults is how many faults an answer lists. Without a bound, the answer to a body of
// 1 MiB could have 40 MiB, and would be kept under its Idempotency-Key.
const MaxFaults = 100

// NotAll is what a detail mentions then.
const NotAll = "not all of its faults are listed"

// manyValues is the number of values above which only the first fault of a body is
// reported: faults in all of maxValues values take much time and memory.
const manyValues = 5000

// CheckSchema checks a decoded body against its schema and returns all faults, or the
// first one if the body has more than manyValues values. No fault repeats a value, which
// may be a secret.
func CheckSchema(schema *openapi3.Schema, value any) error {
	options := []openapi3.SchemaValidationOption{openapi3.VisitAsRequest(), openapi3.EnableFormatValidation()}
	many := values(value) > manyValues
	if !many {
		options = append(options, openapi3.MultiErrors())
	}
	err := variantOf(schema, value).VisitJSON(value, options...)
	var fields []lemma.Field
	for _, broken := range flatten(err) {
		code, detail := sentence(broken)
		fields = append(fields, lemma.Field{Pointer: pointerTo(broken), Code: code, Detail: detail})
	}
	if many && len(fields) > 0 {
		return &lemma.Error{Kind: lemma.Invalid, Message: "the request is not valid; " + NotAll, Fields: fields}
	}
	return Invalid(fields)
}

// variantOf returns the schema that a value of a union is checked against. If the extension
// x-variant-by names a property, it is the variant that allows the value's property, or the
// first one if the value has none, which a discriminator could not express.
func variantOf(union *openapi3.Schema, value any) *openapi3.Schema {
	by, ok := union.Extensions["x-variant-by"].(string)
	if !ok {
		return union
	}
	object, _ := value.(map[string]any)
	given, has := object[by]
	if !has {
		return union.OneOf[0].Value
	}
	all := openapi3.NewStringSchema()
	for _, variant := range union.OneOf {
		allowed := variant.Value.Properties[by].Value.Enum
		if slices.Contains(allowed, given) {
			return variant.Value
		}
		all.Enum = append(all.Enum, allowed...)
	}
	return openapi3.NewObjectSchema().WithProperty(by, all)
}

// values counts the values of a decoded body at all levels.
func values(v any) int {
	n := 1
	switch v := v.(type) {
	case map[string]any:
		for _, inner := range v {
			n += values(inner)
		}
	case []any:
		for _, inner := range v {
			n += values(inner)
		}
	}
	return n
}

func flatten(err error) []*openapi3.SchemaError {
	switch e := err.(type) { //nolint:errorlint // kin-openapi returns these types unwrapped
	case nil:
		return nil
	case *openapi3.SchemaError:
		var inner openapi3.MultiError
		if e.SchemaField == "oneOf" && errors.As(e.Origin, &inner) { // the faults of the variant of a union
			return flatten(inner)
		}
		return []*openapi3.SchemaError{e}
	case openapi3.MultiError:
		var all []*openapi3.SchemaError
		for _, one := range e {
			all = append(all, flatten(one)...)
		}
		return all
	}
	if inner, ok := errors.AsType[*openapi3.SchemaError](err); ok {
		return []*openapi3.SchemaError{inner}
	}
	return []*openapi3.SchemaError{{SchemaField: "schema", Schema: &openapi3.Schema{}}}
}

// pointerTo returns the pointer of a fault. For an unknown field it leads to the field,
// not to its object.
func pointerTo(e *openapi3.SchemaError) string {
	var pointer strings.Builder
	for _, name := range e.JSONPointer() {
		pointer.WriteString(lemma.Pointer(name))
	}
	if name, ok := unknownField(e); ok {
		pointer.WriteString(lemma.Pointer(name))
	}
	if e.SchemaField == "discriminator" {
		pointer.WriteString(lemma.Pointer(e.Schema.Discriminator.PropertyName))
	}
	return pointer.String()
}

func unknownField(e *openapi3.SchemaError) (name string, ok bool) {
	if e.SchemaField != "properties" {
		return "", false
	}
	_, err := fmt.Sscanf(e.Reason, "property %q is unsupported", &name)
	return name, err == nil
}

// sentence returns the code and the detail of a fault.
func sentence(e *openapi3.SchemaError) (code, detail string) {
	s := e.Schema
	switch e.SchemaField {
	case "required":
		return "required", "this field is required"
	case "discriminator":
		return undecided(e)
	case "properties":
		return "unknown_field", "there is no such field here" + listed("; there are ", slices.Sorted(maps.Keys(s.Properties)))
	case "type":
		return "wrong_type", "must be " + typeName(s)
	case "nullable":
		return "wrong_type", "must be " + typeName(s) + ", not null"
	case "enum":
		if _, text := e.Value.(string); !text && s.Type.Is("string") {
			return "wrong_type", "must be " + typeName(s)
		}
		return "not_allowed", "must be one of " + words(s.Enum)
	case "minLength":
		if s.MinLength == 1 {
			return "empty", "must not be empty"
		}
		return "too_short", lengthOf(s, fmt.Sprintf("must have at least %d characters", s.MinLength))
	case "maxLength":
		return "too_long", lengthOf(s, fmt.Sprintf("must have at most %d characters", *s.MaxLength))
	case "minimum":
		return "too_small", "must be at least " + plainly(*s.Min)
	case "maximum":
		return "too_large", "must be at most " + plainly(*s.Max)
	case "exclusiveMinimum":
		return "too_small", "must be greater than " + plainly(*s.Min)
	case "exclusiveMaximum":
		return "too_large", "must be less than " + plainly(*s.Max)
	case "minItems":
		return "too_few", fmt.Sprintf("must have at least %d items", s.MinItems)
	case "maxItems":
		return "too_many", fmt.Sprintf("must have at most %d items", *s.MaxItems)
	case "uniqueItems":
		return "repeated", "must not have the same item twice"
	case "minProperties":
		return "empty", fmt.Sprintf("must have at least %d of its fields", s.MinProps)
	case "maxProperties":
		return "too_many", fmt.Sprintf("must have at most %d fields", *s.MaxProps)
	case "format":
		return "bad_format", formats[s.Format]
	case "pattern":
		return "bad_format", cmp.Or(formOf(s), "does not have the right form")
	}
	return "not_valid", "does not fit the contract"
}

// formOf is the description of a text's form in the contract, or empty.
func formOf(s *openapi3.Schema) string {
	detail, _ := s.Extensions["x-detail"].(string)
	return detail
}

// lengthOf is the detail of a text of a wrong length: of an id, its form.
func lengthOf(s *openapi3.Schema, bound string) string {
	if s.MaxLength == nil || s.MinLength != *s.MaxLength {
		return bound
	}
	return cmp.Or(formOf(s), fmt.Sprintf("must have %d characters", s.MinLength))
}

// undecided returns the fault of a value that is no variant of its union.
func undecided(e *openapi3.SchemaError) (code, detail string) {
	switch e.Value.(type) {
	case nil:
		return "required", "this field is required"
	case string:
		return "not_allowed", "must be one of " + strings.Join(slices.Sorted(maps.Keys(e.Schema.Discriminator.Mapping)), ", ")
	}
	return "wrong_type", "must be a string"
}

var formats = map[string]string{"date-time": "must be a time such as 2026-12-24T09:00:00Z (RFC 3339), before the year 9999"}

func typeName(s *openapi3.Schema) string {
	names := map[string]string{"string": "a string", "integer": "a whole number", "number": "a number", "boolean": "true or false",
		"object": "an object", "array": "a list"}
	if s.Type == nil || len(s.Type.Slice()) == 0 {
		return "of another type"
	}
	return names[s.Type.Slice()[0]]
}

// plainly formats a bound without an exponent.
func plainly(bound float64) string { return strconv.FormatFloat(bound, 'f', -1, 64) }

// words lists the values of an enum: the empty string in quotes, and no null.
func words(values []any) string {
	var list []string
	for _, v := range values {
		switch v {
		case nil:
		case "":
			list = append(list, `""`)
		default:
			list = append(list, fmt.Sprint(v))
		}
	}
	return strings.Join(list, ", ")
}

func listed(before string, names []string) string {
	if len(names) == 0 {
		return ""
	}
	return before + strings.Join(names, ", ")
}

// Invalid returns the error of some faults, in the order of their pointers, and one for
// each pointer: a value of a wrong type also is not one of a list.
func Invalid(fields []lemma.Field) error {
	if len(fields) == 0 {
		return nil
	}
	slices.SortStableFunc(fields, func(a, b lemma.Field) int {
		return cmp.Or(cmp.Compare(a.Pointer, b.Pointer), cmp.Compare(weight(a), weight(b)))
	})
	fields = slices.CompactFunc(fields, func(a, b lemma.Field) bool { return a.Pointer == b.Pointer })
	return &lemma.Error{Kind: lemma.Invalid, Message: "the request is not valid", Fields: fields}
}

func weight(f lemma.Field) int {
	if f.Code == "wrong_type" {
		return 0
	}
	return 1
}

// Unbindable is the error for a value that passes the schema and does not fit the Go type,
// such as 1.0 for a whole number.
func Unbindable(err error) error {
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) {
		return fmt.Errorf("bind request: %w", err)
	}
	return lemma.Fault(strings.ReplaceAll(lemma.Pointer(wrong.Field), ".", "/"), "wrong_type",
		"must be written as a plain whole number, and one that fits")
}

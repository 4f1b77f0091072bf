package message

import (
	"fmt"
	"html"
	"maps"
	"reflect"
	"regexp"
	"strings"
	"time"

	"github.com/osteele/liquid/render"
	"github.com/osteele/liquid/values"
	"github.com/osteele/tuesday"
)

// refused is an error of the dialect. It never contains data.
type refused string

func (r refused) Error() string { return string(r) }

const (
	errNotAList  = refused("the value must be a list, not an object")
	errUniq      = refused("the elements must be texts or numbers")
	errNoDate    = refused("the value must be a date")
	errClock     = refused(`"now" is not available, so that both attempts are equal; give the date in the data`)
	errDateWidth = refused("the widths of the date format must be at most 99")
)

var (
	errLong     = refused(fmt.Sprintf("a text has more than %d bytes", MaxString))
	errManyMade = refused(fmt.Sprintf("a list has more than %d elements", MaxArray))

	errManyValues = refused(fmt.Sprintf("a list has more than %d values, with those inside of others", MaxValues))
)

// bounded adds the filters of the dialect to an engine, each of them guarded.
type bounded struct {
	*render.Config
	meter *meter // nil: the cost is not counted
}

// AddFilter adds a filter of the dialect, guarded; it ignores others.
func (b bounded) AddFilter(name string, filter any) {
	if _, ok := dialectFilters[name]; ok {
		b.Config.AddFilter(name, guarded(name, filter, b.meter))
	}
}

var (
	anyType   = reflect.TypeFor[any]()
	listType  = reflect.TypeFor[[]any]()
	errorType = reflect.TypeFor[error]()
)

// guarded wraps a filter: its input and result are bounded, and the result is
// deterministic, since the engine would list the members of an object in random
// order. default returns its input and is not wrapped.
func guarded(name string, filter any, m *meter) any {
	f := reflect.ValueOf(filter)
	t := f.Type()
	if t.IsVariadic() {
		return filter
	}
	in := make([]reflect.Type, t.NumIn())
	for i := range in {
		in[i] = accepted(t.In(i))
	}
	wrapped := reflect.FuncOf(in, []reflect.Type{anyType, errorType}, false)
	return reflect.MakeFunc(wrapped, func(args []reflect.Value) []reflect.Value {
		out, err := call(name, f, m, args)
		return []reflect.Value{boxed(anyType, out), boxed(errorType, err)}
	}).Interface()
}

func call(name string, f reflect.Value, m *meter, args []reflect.Value) (any, error) {
	asTexts(name, f.Type(), args)
	if err := checkInput(name, m, args); err != nil {
		return nil, err
	}
	for i := range args {
		if f.Type().In(i) != listType {
			continue
		}
		list, err := asList(args[i].Interface())
		if err != nil {
			return nil, err
		}
		args[i] = reflect.ValueOf(list)
	}
	results := f.Call(args)
	if len(results) == 2 && !results[1].IsNil() {
		return nil, results[1].Interface().(error)
	}
	if name == "concat" && manyValues(results[0].Interface(), MaxValues) < 0 {
		return nil, errManyValues
	}
	return checkOutput(results[0].Interface())
}

// manyValues subtracts the values in a list, those inside of others too, from left.
// It stops below 0. A list that contains another list many times is written as
// often.
func manyValues(v any, left int) int {
	left--
	switch v := v.(type) {
	case []any:
		for i := 0; i < len(v) && left >= 0; i++ {
			left = manyValues(v[i], left)
		}
	case object:
		for _, item := range v {
			if left = manyValues(item, left); left < 0 {
				break
			}
		}
	}
	return left
}

// boxed converts v, which may be nil, to a value of an interface type.
func boxed(t reflect.Type, v any) reflect.Value {
	box := reflect.New(t).Elem()
	if v != nil {
		box.Set(reflect.ValueOf(v))
	}
	return box
}

// checkInput refuses input that would cost too much. The result of replace can be
// the product of the sizes of its arguments.
func checkInput(name string, m *meter, args []reflect.Value) error {
	total, elements := 0, 0
	for _, a := range args {
		if a.Kind() == reflect.Func {
			continue // an optional argument; the few that take one are checked by their result
		}
		v := a.Interface()
		if isObject(v) && name != "json" && name != "size" {
			return errNotAList
		}
		if total += weight(v); total > MaxString {
			return errLong
		}
		if a := reflect.ValueOf(v); a.Kind() == reflect.Slice {
			elements += a.Len()
		}
	}
	if err := m.charge((callCost + total + elements*elementCost) * costFactor(name)); err != nil {
		return err
	}
	if name == "replace" {
		s, old, with := args[0].String(), args[1].String(), args[2].String()
		if strings.Count(s, old)*(len(with)-len(old))+len(s) > MaxString {
			return errLong
		}
	}
	if name == "uniq" {
		return checkUniq(args[0].Interface())
	}
	return nil
}

const (
	callCost    = 64 // of a filter, besides a unit for each byte of its input
	elementCost = 32 // of an element of a list
)

// costFactor is the cost of a filter relative to one that copies a text. Filters by
// regular expressions or runes take 10 to 450 ns per byte, as measured.
func costFactor(name string) int {
	switch name {
	case "handle", "handleize":
		return 64
	case "strip_html", "capitalize", "truncate", "truncatewords", "slice":
		return 4
	case "sort", "sort_natural":
		return 16
	}
	return 1
}

// checkUniq refuses elements that are not comparable, which take quadratic time.
func checkUniq(v any) error {
	list, _ := v.([]any)
	for _, item := range list {
		if t := reflect.TypeOf(item); t != nil && !t.Comparable() {
			return errUniq
		}
	}
	return nil
}

func isObject(v any) bool { return v != nil && reflect.TypeOf(v).Kind() == reflect.Map }

// size is the number of members of an object, of the elements of a list, or of the characters of a text.
func size(v any) int {
	if isObject(v) {
		return reflect.ValueOf(v).Len()
	}
	return values.Length(v)
}

func asList(v any) ([]any, error) {
	if v == nil {
		return nil, nil
	}
	list, err := values.Convert(v, listType)
	if err != nil {
		return nil, refused("the value must be a list")
	}
	return list.([]any), nil
}

// checkOutput bounds a result.
func checkOutput(v any) (any, error) {
	if f, ok := v.(float64); ok {
		return withoutSign(f), nil
	}
	if s, ok := v.(string); ok && len(s) > MaxString {
		return nil, errLong
	}
	if r := reflect.ValueOf(v); r.IsValid() && r.Kind() == reflect.Slice && r.Len() > MaxArray {
		return nil, errManyMade
	}
	return v, nil
}

// ownFilters are the filters in which the dialect differs from the engine.
//
// escape returns its input, since output in HTML is escaped anyway. newline_to_br
// returns markup in HTML, so it must be the last filter. In plain text it keeps the
// line breaks.
func ownFilters(inHTML bool) map[string]any {
	same := func(s string) string { return s }
	own := map[string]any{"date": date, "join": join, "json": asJSON, "size": size, "sort": sortBy, "sort_natural": sortNaturally,
		"escape": same, "escape_once": same, "newline_to_br": same,
		"strip_newlines": func(s string) string { return strings.NewReplacer("\r\n", "", "\n", "").Replace(s) }}
	maps.Copy(own, arithmetic)
	if inHTML {
		own["escape_once"] = html.UnescapeString
		own["newline_to_br"] = func(s string) any {
			return values.SafeValue{Value: strings.ReplaceAll(escapeHTML(s), "\n", "<br>\n")}
		}
	}
	return own
}

func escapeHTML(s string) string {
	var b strings.Builder
	_, _ = render.HtmlEscaper.WriteString(&b, s) // a strings.Builder does not fail
	return b.String()
}

func join(list []any, separator func(string) string) (string, error) {
	sep := separator(" ")
	texts := make([]string, 0, len(list))
	total := 0
	for _, item := range list {
		if item == nil {
			continue
		}
		s := asText(item)
		if total += len(s) + len(sep); total > MaxString {
			return "", errLong
		}
		texts = append(texts, s)
	}
	return strings.Join(texts, sep), nil
}

// dateLayouts are the layouts of dates. Without a zone a date is in UTC; the
// engine's parser would use the zone of the host.
var dateLayouts = []string{
	time.RFC3339, "2006-01-02", "2006-01-02T15:04:05", "2006-01-02 15:04:05Z07:00", "2006-01-02 15:04:05 -0700", "2006-01-02 15:04:05",
	"2006-01-02 15:04", "20060102T150405Z", time.RFC1123Z, "2 January 2006", "2 Jan 2006", "January 2, 2006", "Jan 2, 2006",
}

// date formats a date by a strftime format. It returns nil for nil and "", so that
// default can follow.
func date(v any, format func(string) string) (any, error) {
	if v == nil || v == "" {
		return nil, nil
	}
	t, err := asTime(v)
	if err != nil {
		return nil, err
	}
	f := format("%a, %b %d, %y")
	if err := checkFormat(f); err != nil {
		return nil, err
	}
	made, err := tuesday.Strftime(f, t)
	if err != nil {
		return nil, errDateWidth
	}
	return made, nil
}

func asTime(v any) (time.Time, error) {
	switch v := v.(type) {
	case int:
		return time.Unix(int64(v), 0).UTC(), nil
	case string:
		return parseTime(strings.TrimSpace(v))
	}
	return time.Time{}, errNoDate
}

func parseTime(s string) (time.Time, error) {
	if s == "now" || s == "today" {
		return time.Time{}, errClock
	}
	for _, layout := range dateLayouts {
		if t, err := time.ParseInLocation(layout, s, time.UTC); err == nil {
			return t, nil
		}
	}
	return time.Time{}, errNoDate
}

// maxField is the length of the longest field of a date. No directive without a
// width makes as much.
const maxField = 99

// wideField matches a width of three digits or more. It also matches where the
// format has no directive, so it does not depend on where directives begin.
var wideField = regexp.MustCompile(`%[-_^#0]*[1-9][0-9]{2}`)

// checkFormat bounds the length of a date before it is formatted.
func checkFormat(format string) error {
	if wideField.MatchString(format) {
		return errDateWidth
	}
	if len(format)+maxField*strings.Count(format, "%") > MaxString {
		return errLong
	}
	return nil
}

package message

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// decimal writes a number with its shortest digits and without an exponent. All texts of
// a message have numbers in this form.
func decimal(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// asText returns a bound value for a filter on texts, as {{ }} renders it. A list that is
// longer than a filter accepts is cut after MaxString.
func asText(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	case float64:
		return decimal(v)
	case []string:
		return strings.Join(v, "")
	case []any:
		var b strings.Builder
		for i := 0; i < len(v) && b.Len() <= MaxString; i++ {
			b.WriteString(asText(v[i]))
		}
		return b.String()
	}
	return fmt.Sprint(v)
}

// asJSON returns a bound value as JSON. It is empty for what JSON does not have.
func asJSON(v any) string {
	text, err := json.Marshal(withDecimals(v))
	if err != nil {
		return ""
	}
	return string(text)
}

// withDecimals copies a tree for JSON, whose numbers would have exponents.
func withDecimals(v any) any {
	switch v := v.(type) {
	case float64:
		return json.Number(decimal(v))
	case []any:
		if v == nil {
			return nil
		}
		list := make([]any, len(v))
		for i, item := range v {
			list[i] = withDecimals(item)
		}
		return list
	case object:
		members := make(map[string]any, len(v))
		for name, item := range v {
			members[name] = withDecimals(item)
		}
		return members
	}
	return v
}

// withoutSign turns negative zero, which would be written as -0, into 0.
func withoutSign(f float64) float64 {
	if f == 0 {
		return 0
	}
	return f
}

func isNumeric(v any) bool {
	switch v.(type) {
	case int, int64, float64:
		return true
	}
	return false
}

var (
	textType   = reflect.TypeFor[string]()
	optionType = reflect.TypeFor[func(string) string]()
	anyOption  = reflect.TypeFor[func(any) any]()
)

// accepted is the type of a parameter as the engine sees it. The engine would convert
// numbers and lists to texts of a form of its own.
func accepted(t reflect.Type) reflect.Type {
	switch t {
	case listType, textType:
		return anyType
	case optionType:
		return anyOption
	}
	return t
}

// asTexts replaces the arguments that a filter takes as texts.
func asTexts(name string, filter reflect.Type, args []reflect.Value) {
	for i := range args {
		switch t := filter.In(i); {
		case t == textType, takesText(name, i, args[i]):
			args[i] = boxed(t, asText(args[i].Interface()))
		case t == optionType:
			option := args[i].Interface().(func(any) any)
			args[i] = reflect.ValueOf(func(otherwise string) string { return asText(option(otherwise)) })
		}
	}
}

// takesText reports whether a filter takes the argument as a text, although it accepts
// any value: the text of a number for size and slice, and a name for sort.
func takesText(name string, i int, arg reflect.Value) bool {
	switch name {
	case "size", "slice":
		return i == 0 && isNumeric(arg.Interface())
	case "sort", "sort_natural":
		return i == 1 && !arg.IsNil()
	}
	return false
}

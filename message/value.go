package message

import (
	"sort"
	"strconv"
	"strings"
)

// value is one value of the data or of a template: nil, a boolean, an integer, a
// float, a text, or a tree (a list or an object), which only the engine evaluates.
// The zero value is nil.
type value struct {
	kind valueKind
	text string
	n    int // of an integer; 1 for true
	f    float64
	tree any // []any or object
}

type valueKind uint8

const (
	isNil valueKind = iota
	isBool
	isInt
	isFloat
	isText
	isTree
)

func text(s string) value   { return value{kind: isText, text: s} }
func integer(n int) value   { return value{kind: isInt, n: n} }
func float(f float64) value { return value{kind: isFloat, f: f} }

func boolean(b bool) value {
	if b {
		return value{kind: isBool, n: 1}
	}
	return value{kind: isBool}
}

// bound returns the value for the engine.
func (v value) bound() any {
	switch v.kind {
	case isBool:
		return v.n == 1
	case isInt:
		return v.n
	case isFloat:
		return v.f
	case isText:
		return v.text
	case isTree:
		return v.tree
	}
	return nil
}

// true reports whether the value is true in a condition: all but nil and false are.
func (v value) true() bool { return v.kind != isNil && (v.kind != isBool || v.n != 0) }

// empty reports whether the filter default replaces the value.
func (v value) empty() bool { return !v.true() || v.kind == isText && v.text == "" }

// string returns the value as {{ }} renders it and filters on texts take it.
func (v value) string() string {
	switch v.kind {
	case isBool:
		return strconv.FormatBool(v.n == 1)
	case isInt:
		return strconv.Itoa(v.n)
	case isFloat:
		return decimal(v.f)
	}
	return v.text
}

// equal compares like the engine: numbers by value, others only with their own kind.
func (v value) equal(o value) bool {
	switch {
	case v.kind == isInt && o.kind == isInt:
		return v.n == o.n
	case v.number() && o.number():
		return v.asFloat() == o.asFloat()
	}
	return v.kind == o.kind && v.n == o.n && v.text == o.text
}

// less compares like the engine. It is false for values that cannot be compared.
func (v value) less(o value) bool {
	switch {
	case v.kind == isInt && o.kind == isInt:
		return v.n < o.n
	case v.number() && o.number():
		return v.asFloat() < o.asFloat()
	case v.kind != o.kind:
		return false
	}
	return v.n < o.n || v.text < o.text
}

// contains reports whether a text contains another.
func (v value) contains(o value) bool {
	if v.kind != isText {
		return false
	}
	part := o.string()
	if o.kind == isNil {
		part = "<nil>" // as the engine evaluates it
	}
	return strings.Contains(v.text, part)
}

func (v value) number() bool { return v.kind == isInt || v.kind == isFloat }

func (v value) asFloat() float64 {
	if v.kind == isInt {
		return float64(v.n)
	}
	return v.f
}

// object is a JSON object of the data. Unlike a map, it is iterated in the order of
// its sorted names.
type object map[string]any

func (o object) names() []string {
	names := make([]string, 0, len(o))
	for name := range o {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// Len and Index make the engine's for iterate over pairs of name and value.
func (o object) Len() int { return len(o) }

// Index is described at Len.
func (o object) Index(i int) any {
	name := o.names()[i]
	return []any{name, o[name]}
}

// String is the object as {{ }} renders it.
func (o object) String() string { return asJSON(o) }

// weight is the size of all texts in a bound value, which a filter may copy.
func weight(v any) int {
	switch v := v.(type) {
	case string:
		return len(v)
	case []any:
		total := 0
		for _, item := range v {
			total += weight(item)
		}
		return total
	case []string:
		total := 0
		for _, s := range v {
			total += len(s)
		}
		return total
	case object:
		total := 0
		for name, item := range v {
			total += len(name) + weight(item)
		}
		return total
	}
	return 0
}

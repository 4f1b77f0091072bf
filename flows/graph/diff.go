package graph

import (
	"bytes"
	"encoding/json"
	"iter"
	"reflect"
	"slices"
	"strings"

	"github.com/google/uuid"
)

// Difference is one place where two definitions differ.
type Difference struct {
	Pointer string
	Op      string          // add, remove or replace
	From    json.RawMessage // nil: add
	To      json.RawMessage // nil: remove
}

// Compare is Diff of two texts, once the workspace has a processor.
func Compare(workspace uuid.UUID, from, to []byte) ([]Difference, error) {
	defer compiling.Enter(workspace)()
	a, err := Read(from)
	if err != nil {
		return nil, err
	}
	b, err := Read(to)
	if err != nil {
		return nil, err
	}
	return append([]Difference{}, Diff(a, b)...), nil
}

// Diff returns the operations that turn one definition into the other, node by node and
// field by field, sorted by place. Absent and empty fields are equal, but not those of what is kept as it
// is written (layout, data). An object or a list
// whose differences would be longer than both its values is one difference: the places of
// fields in nested objects can be thousands of times as long as the definition.
func Diff(from, to *Definition) []Difference {
	var all []Difference
	compare("", treeOf(from), treeOf(to), false, &all)
	slices.SortStableFunc(all, func(a, b Difference) int { return comparePointers(a.Pointer, b.Pointer) })
	return all
}

func treeOf(d *Definition) any {
	if d == nil {
		d = &Definition{}
	}
	raw, err := json.Marshal(d)
	if err != nil {
		panic("graph: a definition does not marshal: " + err.Error())
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var tree any
	if err := dec.Decode(&tree); err != nil {
		panic("graph: a definition does not unmarshal: " + err.Error())
	}
	return tree
}

// noValue is a field that an object does not have, in what is kept as it is written: null is a value there.
type noValue struct{}

// isKept reports whether the fields of an object are kept as they are written.
func isKept(pointer string) bool {
	if pointer == "/layout" {
		return true
	}
	node, field, _ := strings.Cut(strings.TrimPrefix(pointer, "/nodes/"), "/")
	return "/nodes/"+node+"/"+field == pointer && (field == "data" || field == "layout")
}

// compare appends the differences of two values. inKept: they are within what is kept as it is written.
func compare(pointer string, from, to any, inKept bool, all *[]Difference) {
	isNothing := isNothing
	if inKept {
		isNothing = func(v any) bool { return v == noValue{} }
	}
	switch {
	case reflect.DeepEqual(from, to) || isNothing(from) && isNothing(to):
		return
	case isNothing(from):
		*all = append(*all, Difference{Pointer: pointer, Op: "add", To: text(to)})
		return
	case isNothing(to):
		*all = append(*all, Difference{Pointer: pointer, Op: "remove", From: text(from)})
		return
	}
	whole := Difference{Pointer: pointer, Op: "replace", From: text(from), To: text(to)}
	kept := inKept || isKept(pointer)
	var missing any
	if kept {
		missing = noValue{}
	}
	if parts, ok := partsOf(pointer, from, to, missing); ok {
		if compareParts(parts, kept, max(leastWhole, whole.size()), all) {
			return
		}
	}
	*all = append(*all, whole)
}

// leastWhole is the number of bytes that the differences of an object may always have.
const leastWhole = 64 << 10

func (d Difference) size() int { return len(d.Pointer) + len(d.From) + len(d.To) }

// part is a field or an item of both values. One that a value does not have is nil, or noValue.
type part struct {
	pointer  func() string
	from, to any
}

// compareParts appends the differences of the parts, or none and false if they have more
// bytes than most.
func compareParts(parts iter.Seq[part], inKept bool, most int, all *[]Difference) bool {
	first, size := len(*all), 0
	for p := range parts {
		if reflect.DeepEqual(p.from, p.to) {
			continue // without its pointer
		}
		next := len(*all)
		compare(p.pointer(), p.from, p.to, inKept, all)
		for _, d := range (*all)[next:] {
			size += d.size()
		}
		if size > most {
			*all = (*all)[:first]
			return false
		}
	}
	return true
}

// partsOf are those of two objects, or of two lists of objects. missing is the value of one that there is not.
func partsOf(pointer string, from, to, missing any) (iter.Seq[part], bool) {
	if a, b, ok := both[map[string]any](from, to); ok {
		return objectParts(pointer, a, b, missing), true
	}
	a, b, ok := both[[]any](from, to)
	if !ok || !objects(a) || !objects(b) {
		return nil, false
	}
	return func(yield func(part) bool) {
		for i := range max(len(a), len(b)) {
			if !yield(part{func() string { return index(pointer, i) }, item(a, i, missing), item(b, i, missing)}) {
				return
			}
		}
	}, true
}

func objectParts(pointer string, from, to map[string]any, missing any) iter.Seq[part] {
	return func(yield func(part) bool) {
		for name, value := range from {
			other, has := to[name]
			if !has {
				other = missing
			}
			if !yield(part{func() string { return at(pointer, name) }, value, other}) {
				return
			}
		}
		for name, value := range to {
			if _, had := from[name]; !had && !yield(part{func() string { return at(pointer, name) }, missing, value}) {
				return
			}
		}
	}
}

func item(array []any, i int, missing any) any {
	if i < len(array) {
		return array[i]
	}
	return missing
}

// objects reports whether an array can be compared item by item.
func objects(array []any) bool {
	return !slices.ContainsFunc(array, func(v any) bool { _, ok := v.(map[string]any); return !ok })
}

func both[T any](from, to any) (T, T, bool) {
	a, okA := from.(T)
	b, okB := to.(T)
	return a, b, okA && okB
}

// isNothing reports whether a field is as good as absent: no triggers, an empty name.
func isNothing(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case string:
		return v == ""
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	}
	return false
}

func text(v any) json.RawMessage {
	raw, err := json.Marshal(v)
	if err != nil {
		panic("graph: " + err.Error())
	}
	return raw
}

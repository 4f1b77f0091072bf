package graph

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
)

// Difference is one place where two definitions differ.
type Difference struct {
	Pointer string
	Op      string          // add, remove or replace
	From    json.RawMessage // nil: add
	To      json.RawMessage // nil: remove
}

// Diff returns the operations that turn one definition into the other, node by node and
// field by field, sorted by place. Absent and empty fields are equal.
func Diff(from, to *Definition) []Difference {
	var all []Difference
	compare("", treeOf(from), treeOf(to), &all)
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

func compare(pointer string, from, to any, all *[]Difference) {
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
	if a, b, ok := both[map[string]any](from, to); ok {
		compareObjects(pointer, a, b, all)
		return
	}
	if a, b, ok := both[[]any](from, to); ok && objects(a) && objects(b) {
		compareArrays(pointer, a, b, all)
		return
	}
	*all = append(*all, Difference{Pointer: pointer, Op: "replace", From: text(from), To: text(to)})
}

func compareObjects(pointer string, from, to map[string]any, all *[]Difference) {
	for name, value := range from {
		compare(at(pointer, name), value, to[name], all)
	}
	for name, value := range to {
		if _, had := from[name]; !had {
			compare(at(pointer, name), nil, value, all)
		}
	}
}

func compareArrays(pointer string, from, to []any, all *[]Difference) {
	for i := range max(len(from), len(to)) {
		compare(index(pointer, i), item(from, i), item(to, i), all)
	}
}

func item(array []any, i int) any {
	if i < len(array) {
		return array[i]
	}
	return nil
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

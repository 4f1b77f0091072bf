package graph

import (
	"bytes"
	"encoding/json"
	"reflect"
)

// bindText keeps an object as text: its values take fifty times as much memory as their text.
func (r *reader) bindText(pointer string, v any, to reflect.Value) {
	object, ok := as[map[string]any](r, pointer, v, "an object")
	if !ok || len(object) == 0 {
		return
	}
	r.finite(pointer, v)
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)                   // an escape has six bytes
	if err := enc.Encode(object); err != nil { // unreachable: it was JSON
		r.fault(pointer, "syntax", "%s", err)
	}
	to.SetBytes(bytes.TrimSuffix(text.Bytes(), []byte("\n")))
}

// finite rejects numbers that most programs cannot read, in parts that are kept as
// written. Typed fields reject them already.
func (r *reader) finite(pointer string, v any) {
	switch v := v.(type) {
	case json.Number:
		if _, err := v.Float64(); err != nil {
			r.fault(pointer, "number_out_of_range", "must be a number that a double holds, up to about 1.8e308")
		}
	case []any:
		for i, item := range v {
			r.finite(index(pointer, i), item)
		}
	case map[string]any:
		for _, name := range sorted(v) {
			r.finite(at(pointer, name), v[name])
		}
	}
}

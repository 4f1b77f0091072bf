package api

import (
	"bytes"
	"encoding/json"
)

// optional is a field of a PATCH: absent keeps the value, null removes it, and a value
// replaces it.
type optional[T any] struct {
	Set   bool // it was in the body
	Null  bool // as null
	Value T
}

// UnmarshalJSON is called only for fields that are in the body.
func (o *optional[T]) UnmarshalJSON(text []byte) error {
	o.Set = true
	if o.Null = bytes.Equal(text, []byte("null")); o.Null {
		return nil
	}
	return json.Unmarshal(text, &o.Value)
}

// given is the value; nil when the field was absent or null.
func (o *optional[T]) given() *T {
	if !o.Set || o.Null {
		return nil
	}
	return &o.Value
}

// patched is the value of a field that is in the body, zero for null; nil if it is not.
func (o *optional[T]) patched() *T {
	if !o.Set {
		return nil
	}
	return &o.Value
}

package client

import (
	"bytes"
	"encoding/json"
	"io"
	"testing"
)

// plain encodes and decodes a value as JSON.
func plain(t *testing.T, v any) any {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var made any
	if err := json.NewDecoder(io.LimitReader(bytes.NewReader(raw), 1<<20)).Decode(&made); err != nil {
		t.Fatal(err)
	}
	return made
}

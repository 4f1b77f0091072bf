package lemma_test

import (
	"encoding/json"
	"testing"

	"lemma"
)

func TestHasNUL(t *testing.T) {
	for text, want := range map[string]bool{
		`{}`: false, `{"a":"u0000"}`: false, `"\u0000"`: true, `{"\u0000":1}`: true, `["x","\n\u0000"]`: true, `"\"\u0000"`: true,
		`"C:\\u0000dir"`: false, `"\\\u0000"`: true, `"\\\\u0000"`: false, `"\u00001"`: true, `"\u0001\\"`: false, `"\\"`: false,
	} {
		if !json.Valid([]byte(text)) {
			t.Errorf("%s is not JSON", text)
		}
		if got := lemma.HasNUL([]byte(text)); got != want {
			t.Errorf("%s: %t", text, got)
		}
	}
}

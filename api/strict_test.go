package api

import (
	"encoding/json"
	"errors"
	"testing"

	"lemma"
)

// encoding/json accepts whatever decode accepts, and decode returns a value or a problem
// for every input.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{`{}`, `{"a": [1, 2.5e3, "x\u00e9", null, true]}`, `{"a":1,"a":2}`, `{"a"`, `{} {}`, `[[[[`, "\xff",
		`"\u0000"`, `{"a~/b": {"": 0}}`, ` `, `1e999`, "{\"a\":\n nope}", `{"\ud800": "\ud83d\ude00\udc00"}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		_, err := decode(body)
		var v any
		if err == nil && json.Unmarshal(body, &v) != nil && len(body) < 300 && !tooLarge(body) {
			t.Errorf("taken: %q", body)
		}
		var refused *refusal
		if err != nil && !errors.As(err, &refused) && lemma.KindOf(err) != lemma.Invalid {
			t.Errorf("%q: %v", body, err)
		}
	})
}

// tooLarge reports a number beyond float64, which decode accepts and the schema refuses.
func tooLarge(body []byte) bool {
	var v any
	var wrong *json.UnmarshalTypeError
	return errors.As(json.Unmarshal(body, &v), &wrong)
}

// A lone surrogate is refused. Whole pairs, U+FFFD itself, and an escaped backslash
// before a u are accepted.
func TestLoneSurrogates(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		`"\ud800"`: true, `"\uDFFF"`: true, `"\ud800\ud800"`: true, `"\ud83d\ude00\ud83d"`: true, `"\ude00\ud83d"`: true, `"\ud800x\udc00"`: true,
		`"\ud800\n"`: true, `"\ud800\\udc00"`: true, "\"\\ud800\ufffd\"": true, `"\\\ud800"`: true,
		`"\ud83d\ude00"`: false, `"\uD83D\uDE00\uD83D\uDE00"`: false, `"\ufffd"`: false, "\"\ufffd\"": false, `"\\ud800\ufffd"`: false,
		`"\u00e9"`: false, `"😀"`: false,
	} {
		for _, body := range []string{text, `{"a": [` + text + `]}`, `{` + text + `: 1}`, ` [ 1 , ` + text + ` ]`} {
			_, err := decode([]byte(body))
			if found := faultsOf(err); (len(found) == 1 && found[0].Code == "bad_text") != want || len(found) > 1 {
				t.Errorf("%s: %+v", body, found)
			}
		}
	}
}

package strict

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"testing"

	"lemma"
)

// encoding/json reads whatever Decode accepts as the same value, and Decode returns a value
// or a problem for every input.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{`{}`, `{"a": [1, 2.5e3, "x\u00e9", null, true]}`, `{"a":1,"a":2}`, `{"a"`, `{} {}`, `[[[[`, "\xff",
		`"\u0000"`, `{"a~/b": {"": 0}}`, ` `, `1e999`, "{\"a\":\n nope}",
		`{"\ud800": "\ud83d\ude00\udc00"}`, "{\"a\\\"b\" :\t[ -0.1E+2 , {} , [] , false\r\n] }",
		`[[],[[]],{"a":{"b":[{}]}}]`, `"\\"`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := Decode(body)
		if err == nil {
			var want any
			d := json.NewDecoder(bytes.NewReader(body))
			d.UseNumber()
			if fault := d.Decode(&want); fault != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%q is %v, want %v, %v", body, got, want, fault)
			}
		}
		var refused *Malformed
		if err != nil && !errors.As(err, &refused) && lemma.KindOf(err) != lemma.Invalid {
			t.Errorf("%q: %v", body, err)
		}
	})
}

func faultsOf(err error) []lemma.Field {
	var text *Malformed
	var faults *lemma.Error
	switch {
	case errors.As(err, &text):
		return []lemma.Field{{Code: text.Code, Detail: text.Detail}}
	case errors.As(err, &faults):
		return faults.Fields
	}
	return nil
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
			_, err := Decode([]byte(body))
			if found := faultsOf(err); (len(found) == 1 && found[0].Code == "bad_text") != want || len(found) > 1 {
				t.Errorf("%s: %+v", body, found)
			}
		}
	}
}

package api

import (
	"encoding/json"
	"errors"
	"testing"

	"lemma"
)

// What decode takes, encoding/json takes too, and whatever it is given it
// answers with a value or a refusal that can be shown.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{`{}`, `{"a": [1, 2.5e3, "x\u00e9", null, true]}`, `{"a":1,"a":2}`, `{"a"`, `{} {}`, `[[[[`, "\xff", `"\u0000"`, `{"a~/b": {"": 0}}`, ` `, `1e999`, "{\"a\":\n nope}"} {
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

// tooLarge: a number beyond float64 is taken here and refused by the schema.
func tooLarge(body []byte) bool {
	var v any
	var wrong *json.UnmarshalTypeError
	return errors.As(json.Unmarshal(body, &v), &wrong)
}

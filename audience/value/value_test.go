package value

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestArraysBecomeLists(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		t          Type
		text, want string
	}{
		{"text[]", `{}`, `[]`},
		{"text[]", `{a,b}`, `["a","b"]`},
		{"text[]", `{"a b","",NULL,"NULL","{}",",","\"","\\",null}`, `["a b","",null,"NULL","{}",",","\"","\\","null"]`},
		{"text[]", "{\"a\nb\",é}", `["a\nb","é"]`},
		{"integer[]", `{1,-2,NULL}`, `[1,-2,null]`},
		{"integer[]", `{{1,2},{3,NULL}}`, `[[1,2],[3,null]]`},
		{"integer[]", `[0:1]={1,2}`, `[1,2]`},
		{"integer[]", `[-1:0][2:2]={{1},{2}}`, `[[1],[2]]`},
		{"number[]", `{1.50,NaN,1e-7}`, `[1.50,null,1e-7]`},
		{"boolean[]", `{t,f,NULL}`, `[true,false,null]`},
		{"timestamp[]", `{"2026-01-02 03:04:05+00"}`, `["2026-01-02T03:04:05Z"]`},
		{"date[]", `{2026-01-02}`, `["2026-01-02"]`},
		{"json[]", `{"{\"a\": [1]}",NULL,3}`, `[{"a": [1]},null,3]`},
		{"other[]", `{"(1,\"a b\")"}`, `["(1,\"a b\")"]`},
		// Other forms are texts.
		{"text[]", ``, `""`},
		{"text[]", `a`, `"a"`},
		{"text[]", `{`, `"{"`},
		{"text[]", `{a`, `"{a"`},
		{"text[]", `{a,}`, `"{a,}"`},
		{"text[]", `{,a}`, `"{,a}"`},
		{"text[]", `{a}b`, `"{a}b"`},
		{"text[]", `{"a}`, `"{\"a}"`},
		{"text[]", `{"a\`, `"{\"a\\"`},
		{"text[]", `{a"b"}`, `"{a\"b\"}"`},
		{"text[]", `[0:1]`, `"[0:1]"`},
		{"text[]", `[x]={a}`, `"[x]={a}"`},
		{"text[]", `{{{{{{{a}}}}}}}`, `"{{{{{{{a}}}}}}}"`},
	} {
		if got := string(Append(nil, c.t, []byte(c.text))); got != c.want {
			t.Errorf("%s %s is %s, want %s", c.t, c.text, got, c.want)
		}
	}
	if got := string(Append(nil, "text[]", nil)); got != "null" {
		t.Errorf("null is %s", got)
	}
}

// Whatever a source sends as an array, the payload stays valid JSON.
func TestHostileArraysAreValidJSON(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	pieces := []string{"{", "}", ",", `"`, `\`, "NULL", "a", "1", "t", " ", "\x00", "\xff", "[0:1]=", "=", "é", "-"}
	types := []Type{"text[]", "integer[]", "number[]", "boolean[]", "timestamp[]", "date[]", "json[]", "other[]", "text[][]", "[]"}
	for range 200_000 {
		var text strings.Builder
		if random.IntN(2) == 0 {
			text.WriteByte('{')
		}
		for range random.IntN(12) {
			text.WriteString(pieces[random.IntN(len(pieces))])
		}
		if random.IntN(2) == 0 {
			text.WriteByte('}')
		}
		kind := types[random.IntN(len(types))]
		if got := Append(nil, kind, []byte(text.String())); !json.Valid(got) {
			t.Fatalf("%s %q is %q", kind, text.String(), got)
		}
	}
}

func TestValuesAreAlwaysJSON(t *testing.T) {
	for _, c := range []struct {
		t          Type
		text, want string
	}{
		{Integer, "-12", "-12"}, {Integer, "007", `"007"`}, {Integer, "", `""`}, {Integer, "1,\"x\":2", `"1,\"x\":2"`},
		{Integer, "-", `"-"`},
		{Number, "1.50", "1.50"}, {Number, "1e+06", "1e+06"}, {Number, "1.", `"1."`}, {Number, "1e", `"1e"`}, {Number, ".5", `".5"`},
		{Number, "NaN", "null"},
		{Boolean, "t", "true"}, {Boolean, "f", "false"}, {Boolean, "0", "false"}, {Boolean, "1", "true"}, {Boolean, "", "false"},
		{Timestamp, "2026-01-02 03:04:05", `"2026-01-02T03:04:05Z"`},
		{Timestamp, "2026-01-02 03:04:05.120+00", `"2026-01-02T03:04:05.120Z"`},
		{Timestamp, "2026-01-02 03:04:05+05:30", `"2026-01-02T03:04:05+05:30"`},
		{Timestamp, "2026-01-02 03:04:05-07", `"2026-01-02T03:04:05-07:00"`},
		{Timestamp, "10000-01-02 03:04:05+00", `"10000-01-02 03:04:05+00"`}, {Timestamp, "infinity", `"infinity"`},
		{Timestamp, "0000-00-00 00:00:00", "null"},
		{Timestamp, `2026-01-02 03:04:05","x":"y`, `"2026-01-02 03:04:05\",\"x\":\"y"`}, {Date, "2026-01-02", `"2026-01-02"`},
		{Date, "0000-00-00", "null"},
		{JSON, `{"a":[1]}`, `{"a":[1]}`}, {JSON, `{"a":`, `"{\"a\":"`}, {JSON, `1} , "x": {`, `"1} , \"x\": {"`},
		{Text, "a\x00b\xff\x1f\"\\", "\"a\uFFFDb\uFFFD\\u001f\\\"\\\\\""}, {Text, "</script>\u2028", "\"</script>\u2028\""},
		{Other, "{1,2}", `"{1,2}"`},
	} {
		if got := string(Append(nil, c.t, []byte(c.text))); got != c.want {
			t.Errorf("%s %q: %s, want %s", c.t, c.text, got, c.want)
		}
	}
	if got := string(Append(nil, Text, nil)); got != "null" {
		t.Errorf("null: %s", got)
	}
}

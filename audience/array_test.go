package audience

import (
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lemma/pgtest"
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
		if got := string(appendValue(nil, c.t, []byte(c.text))); got != c.want {
			t.Errorf("%s %s is %s, want %s", c.t, c.text, got, c.want)
		}
	}
	if got := string(appendValue(nil, "text[]", nil)); got != "null" {
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
		if got := appendValue(nil, kind, []byte(text.String())); !json.Valid(got) {
			t.Fatalf("%s %q is %q", kind, text.String(), got)
		}
	}
}

const arraySQL = `
select id, email, array[name, null, '', 'a,b', '{x}', E'q"\\'] as texts,
       array[id, -1, null] as numbers, array[opted_out, null, true] as flags,
       array[[1, 2], [3, null]] as nested, '{}'::text[] as none, null::int[] as nothing,
       '[0:1]={7,8}'::int[] as shifted, array[balance, 'NaN'] as amounts,
       array[joined] as times, array[birthday] as days, array[meta] as objects, array[tag] as tags, array['open', null]::mood[] as moods,
       array['a', 'b']::short[] as shorts, '{1,2}'::pair as pairs, array['b'::"char"] as chars, array['i'::name] as names
  from customers order by id`

// to_jsonb of Postgres gives the expected JSON of each array.
func TestArraysInAllPaths(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	pgtest.Exec(t, b.DB, "create type mood as enum ('open', 'shut'); create domain short as varchar(3); create domain pair as int[]")
	x := b.addAudience(t, arraySQL)
	want := map[string]Type{"texts": "text[]", "numbers": "integer[]", "flags": "boolean[]", "nested": "integer[]", "none": "text[]",
		"nothing": "integer[]",
		"shifted": "integer[]", "amounts": "number[]", "times": "timestamp[]", "days": "date[]", "objects": "json[]", "tags": "other[]",
		"moods":  "text[]",
		"shorts": "text[]", "pairs": "integer[]", "chars": "text[]", "names": "text[]"}
	var columns []string
	for _, c := range x.Columns[2:] {
		columns = append(columns, c.Name)
		if c.Type != want[c.Name] {
			t.Errorf("%s is of type %s, want %s", c.Name, c.Type, want[c.Name])
		}
	}
	streamed, err := b.collect(t, x.ID, columns...)
	if err != nil || len(streamed) != 20 {
		t.Fatalf("%d rows, %v", len(streamed), err)
	}
	b.wantJSON(t, streamed[4].Payload, "5")
	found, err := b.lookup(t, x.ID, columns, []string{"5"})
	if err != nil || found["5"].Payload != streamed[4].Payload {
		t.Errorf("looked up: %s, %v", found["5"].Payload, err)
	}
	p, err := b.Preview(t.Context(), b.Workspace, x.ID, 1)
	b.Must(err)
	shown := map[string]any{}
	for i, c := range p.Columns[2:] {
		shown[c.Name] = p.Rows[0][i+2]
	}
	text, err := json.Marshal(shown)
	b.Must(err)
	b.wantJSON(t, string(text), "1")
}

// wantJSON compares a payload with Postgres's own JSON of the person's row.
func (b bundle) wantJSON(t *testing.T, payload, id string) {
	t.Helper()
	var text string
	err := b.DB.QueryRow(t.Context(), `select (to_jsonb(a) - 'id' - 'email')::text from (`+arraySQL+`) a where id = $1::bigint`,
		id).Scan(&text)
	if err != nil {
		t.Fatal(err)
	}
	var got, want map[string]any
	for text, into := range map[string]*map[string]any{payload: &got,
		strings.NewReplacer("+00:00", "Z", `"NaN"`, "null").Replace(text): &want} {
		if err := json.Unmarshal([]byte(text), into); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Error(cmp.Diff(want, got))
	}
}

func TestArraysInTheSchema(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	pgtest.Exec(t, b.DB,
		"create domain pair as int[]; create table lists (a text[], b pair, c int[][], d box[], e int2vector); "+
			"grant select on lists to "+b.Role)
	s, err := b.Schema(t.Context(), b.Workspace, b.source)
	b.Must(err)
	want := []TableColumn{{"a", "text[]", true}, {"b", "integer[]", true}, {"c", "integer[]", true}, {"d", Other, true}, {"e", Other, true}}
	if diff := cmp.Diff(want, s.Tables[len(s.Tables)-1].Columns); diff != "" {
		t.Error(diff)
	}
}

// A list cannot be a key, an address or a consent.
func TestAListIsNoKey(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	_, err := b.validate(t, "select array[id] as id, email from customers")
	wantCode(t, err, CodeQuery+" /key_column")
	_, err = b.validate(t, "select id, array[email] as email from customers")
	wantCode(t, err, CodeQuery+" /email_column")
	err = b.ValidateMatching(t.Context(), b.Workspace, b.source, "select array[profile_key] from people")
	wantCode(t, err, CodeQuery+" /sql")
}

package audience

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lemma/audience/value"
	"lemma/pgtest"
)

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
	want := map[string]value.Type{"texts": "text[]", "numbers": "integer[]", "flags": "boolean[]", "nested": "integer[]", "none": "text[]",
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
	want := []TableColumn{{"a", "text[]", true}, {"b", "integer[]", true}, {"c", "integer[]", true}, {"d", value.Other, true}, {"e",
		value.Other, true}}
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

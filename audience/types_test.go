package audience

import (
	"slices"
	"strings"
	"testing"

	"lemma"
	"lemma/audience/value"
	"lemma/pgtest"
)

// TestPostgresTypes is TestMySQLTypes for Postgres. A key of none is refused.
func TestPostgresTypes(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	pgtest.Exec(t, b.DB, "create type mood as enum ('red', '7'); create domain whole as int; "+
		"create collation loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
	for k, v := range map[string]struct {
		rows [2]string
		kind value.Type
		data [2]string
		keys []string
	}{
		"smallint": {[2]string{"7", "-7"}, value.Integer, [2]string{"7", "-7"}, []string{"7", "-7"}},
		"bigint": {[2]string{"9223372036854775807", "1"}, value.Integer, [2]string{"9223372036854775807", "1"},
			[]string{"9223372036854775807", "1"}},
		"whole": {[2]string{"7", "8"}, value.Integer, [2]string{"7", "8"}, []string{"7", "8"}},
		"real":  {[2]string{"0.1", "1234567"}, value.Number, [2]string{"0.1", "1.234567e+06"}, []string{"0.1", "1.234567e+06"}},
		"float8": {[2]string{"0.30000000000000004", "1e22"}, value.Number, [2]string{"0.30000000000000004", "1e+22"},
			[]string{"0.30000000000000004", "1e+22"}},
		"numeric": {[2]string{"7.10", "1e20"}, value.Number, [2]string{"7.10", "100000000000000000000"},
			[]string{"7.10", "100000000000000000000"}},
		"numeric(12,2)": {[2]string{"7", "0"}, value.Number, [2]string{"7.00", "0.00"}, []string{"7.00", "0.00"}},
		"boolean":       {[2]string{"true", "false"}, value.Boolean, [2]string{"true", "false"}, nil},
		"date":          {[2]string{"2026-01-02", "0001-01-01"}, value.Date, [2]string{`"2026-01-02"`, `"0001-01-01"`}, nil},
		"timestamptz": {[2]string{"2026-01-02 03:04:05+02", "2026-01-02 03:04:05.5"}, value.Timestamp,
			[2]string{`"2026-01-02T01:04:05Z"`, `"2026-01-02T03:04:05.5Z"`}, nil},
		"json":       {[2]string{"1", `{"a": 1}`}, value.JSON, [2]string{"1", `{"a": 1}`}, nil},
		"integer[]":  {[2]string{"{1}", "{}"}, value.ListOf(value.Integer), [2]string{"[1]", "[]"}, nil},
		"char(5)":    {[2]string{"DE", "a b"}, value.Text, [2]string{`"DE"`, `"a b"`}, []string{"DE", "a b"}},
		"varchar(5)": {[2]string{"DE ", "é"}, value.Text, [2]string{`"DE "`, `"é"`}, []string{"é"}},
		"text":       {[2]string{"Key", `a"b`}, value.Text, [2]string{`"Key"`, `"a\"b"`}, []string{"Key", `a"b`}},
		"mood":       {[2]string{"red", "7"}, value.Text, [2]string{`"red"`, `"7"`}, []string{"red", "7"}},
		"uuid": {[2]string{"00000000-0000-0000-0000-00000000000A", "00000000-0000-0000-0000-000000000007"}, value.Other,
			[2]string{`"00000000-0000-0000-0000-00000000000a"`, `"00000000-0000-0000-0000-000000000007"`},
			[]string{"00000000-0000-0000-0000-00000000000a", "00000000-0000-0000-0000-000000000007"}},
		"bytea": {[2]string{`\x00ff`, "abc"}, value.Other, [2]string{`"\\x00ff"`, `"\\x616263"`}, []string{`\x00ff`, `\x616263`}},
		"inet":  {[2]string{"10.0.0.1", "::1"}, value.Other, [2]string{`"10.0.0.1"`, `"::1"`}, []string{"10.0.0.1", "::1"}},
		"time": {[2]string{"12:00", "00:00:01.5"}, value.Other, [2]string{`"12:00:00"`, `"00:00:01.5"`},
			[]string{"12:00:00", "00:00:01.5"}},
		"interval":           {[2]string{"1 mon", "30 days"}, value.Other, [2]string{`"P1M"`, `"P30D"`}, []string{"P1M", "P30D"}},
		"bit(3)":             {[2]string{"101", "000"}, value.Other, [2]string{`"101"`, `"000"`}, []string{"101", "000"}},
		"money":              {[2]string{"1000", "0.5"}, value.Other, [2]string{`"$1,000.00"`, `"$0.50"`}, []string{"$1,000.00", "$0.50"}},
		"point":              {[2]string{"(1,2)", "(0.1,2)"}, value.Other, [2]string{`"(1,2)"`, `"(0.1,2)"`}, []string{"(1,2)", "(0.1,2)"}},
		"regtype":            {[2]string{"integer", "text"}, value.Other, [2]string{`"integer"`, `"text"`}, []string{"integer", "text"}},
		"oid":                {[2]string{"7", "4294967295"}, value.Integer, [2]string{"7", "4294967295"}, []string{"7", "4294967295"}},
		`text collate loose`: {[2]string{"Key", "other"}, value.Text, [2]string{`"Key"`, `"other"`}, []string{"Key", "other"}},
	} {
		t.Run(k, func(t *testing.T) {
			cast, collate, ok := strings.Cut(k, " ")
			if ok {
				collate = " " + collate
			}
			sql := "select n, n || '@example.com' as email, v::" + cast + collate + " as k from (values (1, '" + v.rows[0] + "'), (2, '" +
				v.rows[1] + "')) as x (n, v)"
			b.wantData(t, sql, v.kind, v.data)
			if v.keys == nil {
				b.wantNoKey(t, sql)
			} else {
				b.wantSameKeys(t, sql, v.keys)
			}
		})
	}
	b.wantSameKeys(t, "select row(7, 'x') as k, 'x@example.com' as email", []string{"(7,x)"})
}

// wantData checks the column k of two rows, which n counts.
func (b bundle) wantData(t *testing.T, sql string, kind value.Type, want [2]string) {
	t.Helper()
	x, err := b.Create(t.Context(), b.Workspace,
		NewAudience{ID: lemma.NewID(), DataSourceID: b.source, Name: lemma.NewID().String(), SQL: sql, KeyColumn: "n", EmailColumn: "email"})
	if err != nil {
		t.Fatal(err)
	}
	if c, _ := columnNamed(x.Columns, "k"); c.Type != kind {
		t.Errorf("it is of type %s instead of %s", c.Type, kind)
	}
	rows, err := b.collect(t, x.ID, "k")
	if err != nil || len(rows) != 2 {
		t.Fatalf("%+v, %v", rows, err)
	}
	slices.SortFunc(rows, func(a, b Row) int { return strings.Compare(a.Key, b.Key) })
	found, err := b.lookup(t, x.ID, []string{"k"}, []string{"1", "2"})
	if err != nil {
		t.Fatal(err)
	}
	for i, row := range rows {
		if payload := `{"k":` + want[i] + `}`; row.Payload != payload || found[row.Key].Payload != payload {
			t.Errorf("streamed as %s and looked up as %s instead of %s", row.Payload, found[row.Key].Payload, payload)
		}
	}
}

func (b bundle) wantNoKey(t *testing.T, sql string) {
	t.Helper()
	_, err := b.Create(t.Context(), b.Workspace,
		NewAudience{ID: lemma.NewID(), DataSourceID: b.source, Name: lemma.NewID().String(), SQL: sql, KeyColumn: "k", EmailColumn: "email"})
	if codeOf(err) != "query_invalid /key_column" || !strings.Contains(lemma.Public(err), "cast it") &&
		!strings.Contains(lemma.Public(err), "hex()") {
		t.Errorf("as a key: %v", err)
	}
	wantCode(t, b.ValidateMatching(t.Context(), b.Workspace, b.source, "select k from ("+sql+") as x"), "query_invalid /sql")
}

// wantSameKeys checks the keys of each way to read them.
func (b bundle) wantSameKeys(t *testing.T, sql string, want []string) {
	t.Helper()
	x := b.keyed(t, sql)
	rows, err := b.collect(t, x.ID)
	if err != nil {
		t.Fatal(err)
	}
	streamed := map[string]bool{}
	for _, row := range rows {
		if IsKey(row.Key) {
			streamed[row.Key] = true
		}
	}
	wantSet(t, streamed, want...)
	for _, keys := range [][]string{want, append([]string{"no key", "1", "-1.5"}, want...)} {
		found, err := b.lookup(t, x.ID, nil, keys)
		if err != nil {
			t.Fatal(err)
		}
		wantKeys(t, found, want...)
	}
	matched, err := b.match(t, "select k from ("+sql+") as x", append([]string{"no key"}, want...)...)
	if err != nil {
		t.Fatal(err)
	}
	wantSet(t, matched, want...)
	measured := map[string]bool{}
	if err := b.Keys(t.Context(), b.Workspace, b.source, "select k from ("+sql+") as x", Period{}, func(key []byte) {
		if IsKey(string(key)) {
			measured[string(key)] = true
		}
	}); err != nil {
		t.Fatal(err)
	}
	wantSet(t, measured, want...)
}

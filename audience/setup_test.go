package audience

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/pgtest"
	"lemma/secrets"
)

// dev are the options of most tests: the source is on this machine.
var dev = Options{AllowPrivate: true, AllowUnix: true, QueryTimeout: 20 * time.Second}

// bundle is a workspace with one data source: a shop whose role can only read.
type bundle struct {
	*Audiences
	pgtest.Shop
	box    *secrets.Box
	source uuid.UUID
}

func setup(t testing.TB, o Options) bundle {
	t.Helper()
	s := pgtest.NewShop(t, `
create table customers (
  id bigint primary key, email text, name text, opted_out boolean not null default false,
  joined timestamptz, birthday date, balance numeric(10,2), score double precision, meta jsonb, tag uuid)`, `
insert into customers (id, email, name, joined, birthday, balance, score, meta, tag)
select i, 'person' || i || '@example.com', 'Person "' || i || '"',
  timestamptz '2026-01-02 03:04:05.678+00', '1990-05-06', i + 0.5, i / 4.0, '{"n": 1}',
       '00000000-0000-0000-0000-000000000001'
  from generate_series(1, 20) i`)
	box := pgtest.Box(t)
	b := bundle{Audiences: New(s.Pool, box, o), Shop: s, box: box}
	b.source = b.addSource(t, Postgres, b.DSN)
	return b
}

// with is the same installation with other options.
func (b bundle) with(o Options) bundle {
	b.Audiences = New(b.Pool, b.box, o)
	return b
}

func (b bundle) addSource(t testing.TB, kind, dsn string) uuid.UUID {
	t.Helper()
	s, err := b.CreateSource(t.Context(), b.Workspace, NewSource{ID: lemma.NewID(), Name: uuid.NewString(), Kind: kind, DSN: dsn})
	if err != nil {
		t.Fatal(err)
	}
	return s.ID
}

const shopSQL = "select id, email, name, opted_out, joined, birthday, balance, score, meta, tag from customers order by id"

func (b bundle) addAudience(t testing.TB, sql string) Audience {
	t.Helper()
	x, err := b.Create(t.Context(), b.Workspace, NewAudience{ID: lemma.NewID(), DataSourceID: b.source, Name: uuid.NewString(), SQL: sql,
		KeyColumn: "id", EmailColumn: "email"})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func (b bundle) validate(t testing.TB, sql string) (Report, error) {
	t.Helper()
	return b.Validate(t.Context(), b.Workspace, Draft{DataSourceID: b.source, SQL: sql, KeyColumn: "id", EmailColumn: "email"})
}

// codeOf is the code of an error, followed by the first pointer.
func codeOf(err error) string {
	var e *lemma.Error
	switch {
	case err == nil:
		return "fine"
	case !errors.As(err, &e):
		return err.Error()
	}
	code := e.Code
	if code == "" {
		code = string(e.Kind)
	}
	if len(e.Fields) > 0 {
		code += " " + e.Fields[0].Pointer
	}
	return code
}

func wantCode(t testing.TB, err error, want string) {
	t.Helper()
	if got := codeOf(err); got != want {
		t.Errorf("got %q, want %q (%v)", got, want, err)
	}
}

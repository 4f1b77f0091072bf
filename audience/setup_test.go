package audience

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/pgtest"
	"lemma/secrets"
)

// dev are the options of most tests: the source is on this machine.
var dev = Options{AllowPrivate: true, AllowUnix: true, QueryTimeout: 20 * time.Second}

// bundle is a workspace with one data source: a shop whose role can only read.
type bundle struct {
	*Audiences
	ws     uuid.UUID
	source uuid.UUID
	shop   *pgxpool.Pool // as superuser
	role   string
	dsn    string
}

func newBox(t testing.TB) *secrets.Box {
	t.Helper()
	box, err := secrets.ParseKeys(secrets.NewKey())
	if err != nil {
		t.Fatal(err)
	}
	return box
}

func setup(t testing.TB, o Options) bundle {
	t.Helper()
	db := pgtest.DB(t)
	role := "reader_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	do(t, db, "create role "+role+" login")
	t.Cleanup(func() { do(t, db, "drop role "+role) })
	b := bundle{Audiences: New(db, newBox(t), o), ws: pgtest.Workspace(t, db), shop: pgtest.Empty(t), role: role}
	do(t, b.shop, `
create table customers (
  id bigint primary key, email text, name text, opted_out boolean not null default false,
  joined timestamptz, birthday date, balance numeric(10,2), score double precision, meta jsonb, tag uuid)`)
	do(t, b.shop, `
insert into customers (id, email, name, joined, birthday, balance, score, meta, tag)
select i, 'person' || i || '@example.com', 'Person "' || i || '"',
  timestamptz '2026-01-02 03:04:05.678+00', '1990-05-06', i + 0.5, i / 4.0, '{"n": 1}',
       '00000000-0000-0000-0000-000000000001'
  from generate_series(1, 20) i`)
	do(t, b.shop, "grant select on customers to "+role)
	b.dsn = as(t, pgtest.DSN(b.shop), role)
	b.source = b.addSource(t, Postgres, b.dsn)
	return b
}

// as is the DSN for another user.
func as(t testing.TB, dsn, user string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User(user)
	return u.String()
}

func do(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(context.Background(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func (b bundle) addSource(t testing.TB, kind, dsn string) uuid.UUID {
	t.Helper()
	s, err := b.CreateSource(t.Context(), b.ws, NewSource{ID: lemma.NewID(), Name: uuid.NewString(), Kind: kind, DSN: dsn})
	if err != nil {
		t.Fatal(err)
	}
	return s.ID
}

const shopSQL = "select id, email, name, opted_out, joined, birthday, balance, score, meta, tag from customers order by id"

func (b bundle) addAudience(t testing.TB, sql string) Audience {
	t.Helper()
	x, err := b.Create(t.Context(), b.ws, NewAudience{ID: lemma.NewID(), DataSourceID: b.source, Name: uuid.NewString(), SQL: sql,
		KeyColumn: "id", EmailColumn: "email"})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func (b bundle) validate(t testing.TB, sql string) (Report, error) {
	t.Helper()
	return b.Validate(t.Context(), b.ws, Draft{DataSourceID: b.source, SQL: sql, KeyColumn: "id", EmailColumn: "email"})
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

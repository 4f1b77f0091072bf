package pgtest

import (
	"context"
	"net/url"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/secrets"
)

// Shop is a workspace in a new database, and a customer's database. A package's tests
// embed it in a type with their own fields. Package pgtest/shop fills it.
type Shop struct {
	T         testing.TB
	Pool      *pgxpool.Pool // Lemma's database
	Workspace uuid.UUID
	DB        *pgxpool.Pool // the customer's database, as its owner; nil before OpenDB
	Role      string        // may only read the customer's tables
	DSN       string        // of DB, as Role
}

// NewShop is a shop in a new database. If there is ddl, OpenDB executes it.
func NewShop(t testing.TB, ddl ...string) Shop {
	t.Helper()
	s := ShopIn(t, DB(t))
	if len(ddl) > 0 {
		s.OpenDB(ddl...)
	}
	return s
}

// ShopIn is a shop in an existing database.
func ShopIn(t testing.TB, pool *pgxpool.Pool) Shop {
	t.Helper()
	return Shop{T: t, Pool: pool, Workspace: Workspace(t, pool)}
}

// OpenDB replaces the customer's database by a new one, executes each statement of ddl
// in it, and makes a new role.
func (s *Shop) OpenDB(ddl ...string) {
	s.T.Helper()
	s.DB = Empty(s.T)
	s.Role = "reader_" + strings.ReplaceAll(uuid.NewString(), "-", "")[:12]
	s.DSN = DSNAs(s.DB, s.Role)
	for _, statement := range ddl {
		s.ExecDB(statement)
	}
	s.ExecDB("create role " + s.Role + " login; grant select on all tables in schema public to " + s.Role +
		"; revoke create on schema public from public")
	db, role := s.DB, s.Role
	s.T.Cleanup(func() { _, _ = db.Exec(context.Background(), "drop owned by "+role+"; drop role "+role) })
}

// NewProvider inserts an email provider and its meter.
func (s *Shop) NewProvider(kind string) uuid.UUID {
	s.T.Helper()
	id := uuid.Must(uuid.NewV7())
	s.Exec(`insert into providers (workspace_id, id, name, channel, kind, config) values ($1, $2, $3, 'email', $4, '{}')`,
		s.Workspace, id, "provider "+id.String(), kind)
	s.Exec(`insert into provider_meters (workspace_id, provider_id) values ($1, $2)`, s.Workspace, id)
	return id
}

// Subscribe makes an endpoint of the workspace that subscribes to types of events.
func (s *Shop) Subscribe(types ...string) {
	s.T.Helper()
	Subscribe(s.T, s.Pool, s.Workspace, types...)
}

// Subscribe makes an endpoint of a workspace that subscribes to types of events.
func Subscribe(t testing.TB, pool *pgxpool.Pool, workspace uuid.UUID, types ...string) {
	t.Helper()
	id := uuid.Must(uuid.NewV7())
	Exec(t, pool, `insert into webhook_endpoints (workspace_id, id, name, url, secret, subscriptions)
		values ($1, $2, $3, 'https://x.example', '', jsonb_build_array(jsonb_build_object('types', $4::text[])))`, workspace, id,
		id.String(), types)
	Exec(t, pool, `insert into webhook_subscriptions (workspace_id, type, endpoint_id)
		select $1, type, $2 from unnest($3::text[]) as t (type)`,
		workspace, id, types)
}

// Must fails the test on an error.
func (s *Shop) Must(err error) {
	s.T.Helper()
	if err != nil {
		s.T.Fatal(err)
	}
}

// Exec executes a statement in Lemma's database.
func (s *Shop) Exec(sql string, args ...any) {
	s.T.Helper()
	Exec(s.T, s.Pool, sql, args...)
}

// ExecDB executes a statement in the customer's database.
func (s *Shop) ExecDB(sql string, args ...any) {
	s.T.Helper()
	Exec(s.T, s.DB, sql, args...)
}

// Count returns the number that a query on Lemma's database selects.
func (s *Shop) Count(sql string, args ...any) int {
	s.T.Helper()
	return One[int](s.T, s.Pool, sql, args...)
}

// WantCount checks the number that a query on Lemma's database selects.
func (s *Shop) WantCount(want int, sql string, args ...any) {
	s.T.Helper()
	if got := s.Count(sql, args...); got != want {
		s.T.Errorf("got %d, want %d: %s %v", got, want, sql, args)
	}
}

// Eventually polls a condition for 20 s.
func (s *Shop) Eventually(what string, is func() bool) {
	s.T.Helper()
	Eventually(s.T, inTime, what, is)
}

// WaitForLocks returns once n sessions in Lemma's database wait for a lock.
func (s *Shop) WaitForLocks(n int) {
	s.T.Helper()
	WaitForLocks(s.T, s.Pool, n)
}

// Connect opens a second pool on Lemma's database, with changes of its settings.
func (s *Shop) Connect(change ...func(*pgxpool.Config)) *pgxpool.Pool {
	s.T.Helper()
	cfg := s.Pool.Config()
	for _, c := range change {
		c(cfg)
	}
	own, err := pgxpool.NewWithConfig(context.Background(), cfg)
	s.Must(err)
	s.T.Cleanup(own.Close)
	return own
}

// Box encrypts with a new key.
func Box(t testing.TB) *secrets.Box {
	t.Helper()
	box, err := secrets.ParseKeys(secrets.NewKey())
	if err != nil {
		t.Fatal(err)
	}
	return box
}

// Exec executes a statement, and fails the test on an error.
func Exec(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(context.Background(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// One returns the only column of the first row of a query.
func One[V any](t testing.TB, pool *pgxpool.Pool, sql string, args ...any) (v V) {
	t.Helper()
	if err := pool.QueryRow(context.Background(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// Column returns the only column of all rows of a query.
func Column[V any](t testing.TB, pool *pgxpool.Pool, sql string, args ...any) []V {
	t.Helper()
	rows, _ := pool.Query(context.Background(), sql, args...) // CollectRows returns the error
	all, err := pgx.CollectRows(rows, pgx.RowTo[V])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return all
}

// Pages returns the rows of all pages of a list, which have at most limit rows. read
// reads a page and returns the cursor of the next one, which is empty after the last.
func Pages[V any](t testing.TB, limit int, read func(cursor string) ([]V, string, error)) (all []V) {
	t.Helper()
	for cursor := ""; ; {
		rows, next, err := read(cursor)
		if err != nil || len(rows) > limit || len(rows) == 0 && next != "" {
			t.Fatalf("%d rows on a page, %v", len(rows), err)
		}
		if all, cursor = append(all, rows...), next; next == "" {
			return all
		}
	}
}

// DSNAs is the DSN of a pool's database for a role without a password.
func DSNAs(pool *pgxpool.Pool, role string) string {
	c := pool.Config().ConnConfig
	u := url.URL{Scheme: "postgres", User: url.User(role), Path: "/" + c.Database, RawQuery: "host=" + url.QueryEscape(c.Host)}
	return u.String()
}

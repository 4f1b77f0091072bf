package pgtest

import (
	"context"
	"net/url"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Shop is a workspace in a new database, and a customer's database. A package's
// tests embed it in a type that adds their own fields.
type Shop struct {
	T         testing.TB
	Pool      *pgxpool.Pool // Lemma's database
	Workspace uuid.UUID
	DB        *pgxpool.Pool // the customer's database, as its owner
	Role      string        // may only read the customer's tables
	DSN       string        // of DB, as Role
}

// NewShop makes a shop and executes each statement of ddl in the customer's database.
func NewShop(t testing.TB, ddl ...string) Shop {
	t.Helper()
	return ShopIn(t, DB(t), ddl...)
}

// ShopIn is NewShop with a workspace in an existing database.
func ShopIn(t testing.TB, pool *pgxpool.Pool, ddl ...string) Shop {
	t.Helper()
	s := Shop{T: t, Pool: pool, Workspace: Workspace(t, pool)}
	s.OpenDB(ddl...)
	return s
}

// OpenDB replaces the customer's database by a new one with the tables of ddl,
// and makes a new role.
func (s *Shop) OpenDB(ddl ...string) {
	s.T.Helper()
	s.DB = Empty(s.T)
	s.Role = "reader_" + strings.ReplaceAll(uuid.NewString(), "-", "")[:12]
	s.DSN = asRole(s.DB, s.Role)
	for _, statement := range ddl {
		s.Run(s.DB, statement)
	}
	s.Run(s.DB, "create role "+s.Role+" login")
	s.Run(s.DB, "grant select on all tables in schema public to "+s.Role)
	s.Run(s.DB, "revoke create on schema public from public")
	db, role := s.DB, s.Role
	s.T.Cleanup(func() { _, _ = db.Exec(context.Background(), "drop owned by "+role+"; drop role "+role) })
}

// Provider inserts an email provider and its meter.
func (s *Shop) Provider(kind string) uuid.UUID {
	s.T.Helper()
	id := uuid.Must(uuid.NewV7())
	s.Run(s.Pool, `insert into providers (workspace_id, id, name, channel, kind, config) values ($1, $2, $3, 'email', $4, '{}')`,
		s.Workspace, id, "provider "+id.String(), kind)
	s.Run(s.Pool, `insert into provider_meters (workspace_id, provider_id) values ($1, $2)`, s.Workspace, id)
	return id
}

// Must fails the test on an error.
func (s *Shop) Must(err error) {
	s.T.Helper()
	if err != nil {
		s.T.Fatal(err)
	}
}

// Run executes a statement, and fails the test on an error.
func (s *Shop) Run(pool *pgxpool.Pool, sql string, args ...any) {
	s.T.Helper()
	if _, err := pool.Exec(context.Background(), sql, args...); err != nil {
		s.T.Fatalf("%s: %v", sql, err)
	}
}

// Count returns the number that a query on Lemma's database selects.
func (s *Shop) Count(sql string, args ...any) (n int) {
	s.T.Helper()
	s.Must(s.Pool.QueryRow(context.Background(), sql, args...).Scan(&n))
	return n
}

// asRole is the DSN of a pool's database for a role without a password.
func asRole(pool *pgxpool.Pool, role string) string {
	c := pool.Config().ConnConfig
	u := url.URL{Scheme: "postgres", User: url.User(role), Path: "/" + c.Database, RawQuery: "host=" + url.QueryEscape(c.Host)}
	return u.String()
}

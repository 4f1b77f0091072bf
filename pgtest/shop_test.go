package pgtest_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"lemma/pgtest"
)

func TestAShopsRoleOnlyReads(t *testing.T) {
	t.Parallel()
	s := pgtest.NewShop(t, `create table customers (id text)`)
	s.ExecDB(`insert into customers values ('c1')`)
	conn, err := pgx.Connect(t.Context(), s.DSN)
	s.Must(err)
	defer conn.Close(t.Context())
	var id string
	s.Must(conn.QueryRow(t.Context(), `select id from customers`).Scan(&id))
	for _, forbidden := range []string{`insert into customers values ('c2')`, `create table t ()`} {
		if _, err := conn.Exec(t.Context(), forbidden); err == nil || !strings.Contains(err.Error(), "permission denied") {
			t.Errorf("%s: %v", forbidden, err)
		}
	}
	s.NewProvider("smtp")
	if n := s.Count(`select count(*) from provider_meters where workspace_id = $1`, s.Workspace); n != 1 {
		t.Errorf("%d meters", n)
	}
}

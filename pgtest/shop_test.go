package pgtest_test

import (
	"context"
	"errors"
	"slices"
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
	s.WantCount(1, `select count(*) from provider_meters where workspace_id = $1`, s.Workspace)
}

func TestWaitForLocks(t *testing.T) {
	t.Parallel()
	s := pgtest.NewShop(t)
	holder, err := s.Pool.Begin(t.Context())
	s.Must(err)
	_, err = holder.Exec(t.Context(), `lock table templates`)
	s.Must(err)
	if n := pgtest.LockWaits(t, s.Pool); n != 0 {
		t.Errorf("%d sessions wait for a lock that one holds", n)
	}
	ended := make(chan error, 2)
	for range 2 {
		go func() { _, err := s.Pool.Exec(context.Background(), `delete from templates`); ended <- err }()
	}
	s.WaitForLocks(2)
	s.Must(holder.Rollback(t.Context()))
	s.Must(errors.Join(<-ended, <-ended))
	if all := pgtest.Column[int](t, s.Pool, `select n from generate_series(1, 3) n order by n`); !slices.Equal(all, []int{1, 2, 3}) {
		t.Errorf("got %v", all)
	}
}

package migrations_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/migrations"
	"lemma/pgtest"
)

// A database that cannot store every character is refused before it has a table, and found by
// the guards.
func TestADatabaseOfAnotherEncoding(t *testing.T) {
	t.Parallel()
	utf8 := pgtest.Empty(t)
	cfg := utf8.Config()
	cfg.ConnConfig.Database += "_latin1"
	pgtest.Exec(t, utf8, "create database "+cfg.ConnConfig.Database+" encoding 'LATIN1' locale 'C' template template0")
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		pool.Close()
		if _, err := utf8.Exec(context.Background(), "drop database "+cfg.ConnConfig.Database); err != nil {
			t.Error(err)
		}
	})
	const why = "server_encoding: the encoding of the database is LATIN1"
	if err := migrations.Up(t.Context(), pool); err == nil || !strings.Contains(err.Error(), why) {
		t.Errorf("migrate: %v", err)
	}
	if n := pgtest.One[int](t, pool, "select count(*) from pg_tables where schemaname = 'public'"); n != 0 {
		t.Errorf("%d tables were made", n)
	}
	guards, err := migrations.Guards(t.Context(), pool, inTest)
	if err != nil || !slices.Contains(red(guards), "server_encoding") {
		t.Errorf("red are %v, %v", red(guards), err)
	}
}

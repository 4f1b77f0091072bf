package migrations_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/migrations"
	"lemma/pgtest"
)

// Migrations have no timeouts, also when each connection of the pool sets some.
func TestMigrationsHaveNoTimeouts(t *testing.T) {
	t.Parallel()
	cfg := pgtest.DB(t).Config()
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `set statement_timeout = 7000; set idle_in_transaction_session_timeout = 7000; set intervalstyle = iso_8601`)
		return err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	own, err := migrations.OwnPool(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	if got := pgtest.One[string](t, own, `select concat_ws(' ', current_setting('statement_timeout'),
		current_setting('idle_in_transaction_session_timeout'), current_setting('intervalstyle'))`); got != "0 0 iso_8601" {
		t.Errorf("the settings are %s", got)
	}
}

package server

import (
	"testing"

	"lemma/pgtest"
)

// A database may have another default isolation level.
func TestConnectionsReadWhatIsCommitted(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	if _, err := pool.Exec(t.Context(), `do $$ begin
		execute format('alter database %I set default_transaction_isolation = %L', current_database(), 'repeatable read'); end $$`); err != nil {
		t.Fatal(err)
	}
	ours, err := OpenPool(t.Context(), Config{DatabaseURL: pgtest.DSN(pool)})
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	var level string
	if err := ours.QueryRow(t.Context(), "show transaction_isolation").Scan(&level); err != nil || level != "read committed" {
		t.Errorf("a statement runs as %q, %v", level, err)
	}
}

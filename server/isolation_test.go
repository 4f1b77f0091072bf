package server

import (
	"testing"

	"lemma/pgtest"
)

// A database may have another default isolation level, or time zone.
func TestConnectionsHaveTheirOwnSettings(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	if _, err := pool.Exec(t.Context(), `do $$ begin
		execute format('alter database %I set default_transaction_isolation = %L', current_database(), 'repeatable read');
		execute format('alter database %I set timezone = %L', current_database(), 'America/New_York');
		execute format('alter database %I set quote_all_identifiers = on', current_database()); end $$`); err != nil {
		t.Fatal(err)
	}
	ours, err := OpenPool(t.Context(), Config{DatabaseURL: pgtest.DSN(pool)})
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	var level, zone string
	err = ours.QueryRow(t.Context(), "select current_setting('transaction_isolation'), current_setting('timezone')").Scan(&level, &zone)
	if err == nil {
		_, err = ours.Exec(t.Context(), `do $$ begin assert current_setting('quote_all_identifiers') = 'off'; end $$`)
	}
	if err != nil || level != "read committed" || zone != "UTC" {
		t.Errorf("a statement runs as %q in %q, %v", level, zone, err)
	}
}

package server

import (
	"strings"
	"testing"

	"lemma/pgtest"
)

// A database may have another default isolation level, or time zone, or another form of texts.
func TestConnectionsHaveTheirOwnSettings(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	if _, err := pool.Exec(t.Context(), `do $$ begin
		execute format('alter database %I set default_transaction_isolation = %L', current_database(), 'repeatable read');
		execute format('alter database %I set timezone = %L', current_database(), 'America/New_York');
		execute format('alter database %I set standard_conforming_strings = off', current_database());
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
		_, err = ours.Exec(t.Context(), `do $$ begin assert current_setting('quote_all_identifiers') = 'off' and length('\\') = 2; end $$`)
	}
	if err != nil || level != "read committed" || zone != "UTC" {
		t.Errorf("a statement runs as %q in %q, %v", level, zone, err)
	}
}

// The settings of a DSN replace Lemma's, in each spelling that Postgres reads.
func TestADSNReplacesSettings(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	for _, setting := range []string{"timezone=America/New_York", "TimeZone=America/New_York", "options=-c%20TimeZone%3DAmerica/New_York",
		"options=-c%20log_min_messages%3Dlog%20--timezone%3DAmerica/New_York"} {
		for range 5 { // the order of a map is random
			dsn, separator := pgtest.DSN(pool), "?"
			if strings.Contains(dsn, "?") {
				separator = "&"
			}
			ours, err := OpenPool(t.Context(), Config{DatabaseURL: dsn + separator + setting})
			if err != nil {
				t.Fatal(err)
			}
			var zone string
			err = ours.QueryRow(t.Context(), `select current_setting('timezone')`).Scan(&zone)
			if ours.Close(); err != nil || zone != "America/New_York" {
				t.Fatalf("%s: the zone is %s, %v", setting, zone, err)
			}
		}
	}
}

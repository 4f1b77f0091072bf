package server

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/pgtest"
)

// A database whose order of texts is that of a library is compared with the library of today.
func TestChangedCollation(t *testing.T) {
	t.Parallel()
	pool := pgtest.Empty(t)
	if c, err := ReadCollation(t.Context(), pool); err != nil || c != (Collation{}) {
		t.Errorf("a database in C: %+v, %v", c, err)
	}
	if pgtest.One[int](t, pool, "select current_setting('server_version_num')::int") < 150_000 {
		return // Postgres has no versions of databases
	}
	name := strings.ReplaceAll("icu_"+lemma.NewID().String(), "-", "_")
	exec := func(sql string) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec(fmt.Sprintf("create database %s template template0 locale_provider icu icu_locale 'en-US'", name))
	config := pool.Config()
	config.ConnConfig.Database = name
	icu, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(icu.Close)
	for _, version := range []string{"", "0.1"} {
		want := version != ""
		if want {
			exec(fmt.Sprintf("update pg_database set datcollversion = '%s' where datname = '%s'", version, name))
		}
		c, err := ReadCollation(t.Context(), icu)
		if err != nil || c.Stored == "" || c.Now == "" || c.Changed() != want {
			t.Errorf("version %q: %+v, %v", version, c, err)
		}
		var log strings.Builder
		(&Server{Pool: icu, log: slog.New(slog.NewTextHandler(&log, nil))}).WarnOfCollation(t.Context())
		if strings.Contains(log.String(), "order of texts has changed") != want {
			t.Errorf("version %q: the log is %q", version, log.String())
		}
	}
}

package migrations_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lemma/dev/postgres"
	"lemma/migrations"
	"lemma/pgtest"
)

// A database that was restored from a dump has the same schema, and all guards hold. It is
// parsed from what Postgres prints, which may be printed in another way afterwards: so is
// `a between 1 and 2` at the beginning of a condition. An upgrade by pg_upgrade or by a
// provider of Postgres restores the schema as well.
func TestRestoredDatabaseHasAllGuards(t *testing.T) {
	t.Parallel()
	binaries, err := postgres.Find(os.Getenv("LEMMA_PG_BIN"), 0)
	if err != nil {
		t.Fatal(err)
	}
	from, to := pgtest.DB(t), pgtest.Empty(t)
	file := filepath.Join(t.TempDir(), "lemma.dump")
	run(t, filepath.Join(binaries.Dir, "pg_dump"), "--format=custom", "--file="+file, pgtest.DSN(from))
	run(t, filepath.Join(binaries.Dir, "pg_restore"), "--exit-on-error", "--dbname="+pgtest.DSN(to), file)

	guards, err := migrations.Guards(t.Context(), to, inTest)
	if err != nil {
		t.Fatal(err)
	}
	if err := migrations.Red(guards); err != nil {
		t.Error(err)
	}
	want, err := migrations.Schema(t.Context(), from)
	if err != nil {
		t.Fatal(err)
	}
	got, err := migrations.Schema(t.Context(), to)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("the restored schema differs (-dumped +restored), %v:\n%s", err, diff)
	}
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", filepath.Base(name), err, out)
	}
}

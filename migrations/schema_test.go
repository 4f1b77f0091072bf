package migrations_test

import (
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"lemma/migrations"
	"lemma/pgtest"
)

var update = flag.Bool("update", false, "write schema.sql instead of comparing with it")

func TestSchemaDump(t *testing.T) {
	t.Parallel()
	got, err := migrations.Schema(t.Context(), pgtest.DB(t))
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile("schema.sql", []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("schema.sql")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("schema.sql differs from the schema after all migrations; run `make schema` (-file +database):\n%s", diff)
	}
}

// A change of the schema shows in the dump.
func TestSchemaDumpSeesChanges(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	before, err := migrations.Schema(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range []string{
		"alter table workspaces add column extra int",
		"alter table workspaces alter column name drop not null",
		"alter table batches drop constraint batches_counts",
		"drop index attempts_ended_badly",
		"alter table batches_default set (fillfactor = 71)",
		"comment on column workspaces.name is 'a comment'",
		"create view more as select 1 as one",
	} {
		if _, err := pool.Exec(t.Context(), change); err != nil {
			t.Fatalf("%s: %v", change, err)
		}
		after, err := migrations.Schema(t.Context(), pool)
		if err != nil {
			t.Fatal(err)
		}
		if after == before {
			t.Errorf("the dump does not see: %s", change)
		}
		before = after
	}
}

// A row that is deleted is looked up in the tables that refer to it, while it is locked: without an index that takes as
// long as these are, for each row that is deleted with another one.
func TestReferencesHaveIndexes(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	rows, _ := pool.Query(t.Context(), `
		select c.conrelid::regclass || '.' || c.conname,
			exists (select from pg_index i where i.indrelid = c.conrelid and (
				c.conkey <@ (i.indkey::smallint[])[0:cardinality(c.conkey) - 1]
				or i.indisunique and i.indpred is null and (i.indkey::smallint[])[0:i.indnkeyatts - 1] <@ c.conkey))
		from pg_constraint c where c.contype = 'f' and c.conparentid = 0`)
	var name string
	var indexed bool
	n := 0
	_, err := pgx.ForEachRow(rows, []any{&name, &indexed}, func() error {
		if n++; !indexed {
			t.Errorf("%s has no index", name)
		}
		return nil
	})
	if err != nil || n < 40 {
		t.Errorf("%d references, %v", n, err)
	}
}

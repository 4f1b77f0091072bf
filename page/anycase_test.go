package page_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"lemma/page"
)

// A name is found in any case, also in a database of the locale C, whose lower() knows ASCII only, and
// whatever it has that a pattern would mean.
func TestNamesAreFoundInAnyCase(t *testing.T) {
	t.Parallel()
	pool, _ := fill(t)
	const name = `Ärzte Київ ΣΊΣΥΦΟΣ *a.b(c)[d]{1}\x^$|+?-_"'#&/~ 10 %`
	if _, err := pool.Exec(t.Context(), `update things set name = $1 where number = 0`, name); err != nil {
		t.Fatal(err)
	}
	for text, found := range map[string]bool{"ärzte": true, "ÄRZTE КИЇВ": true, "київ σίσυφος": true, name: true, "*A.B(C)[D]{1}\\X": true,
		"^$|+?-_": true, "\"'#&/~ 10 %": true, "a?b": false, "Arzte": false, "[d": true, "10": true, ".": true, "\\": true, "\\d": false} {
		got, _, err := things.Read(t.Context(), pool, page.Query{Name: text, Limit: 30}, 1, selectThings, pgx.RowToStructByName[thing])
		if err != nil || (len(got) == 1) != found {
			t.Errorf("%q: %d rows, %v", text, len(got), err)
		}
	}
}

package exports

import (
	"testing"

	"lemma/pgtest"
)

func (f fixture) repair() (rows int64) {
	f.t.Helper()
	for _, r := range f.Repairs() {
		n, err := r.Run(f.t.Context())
		f.must(err)
		rows += n
	}
	return rows
}

// An export whose next run is further ahead than a retry can be is due, and the attempt of a
// process that was killed ends soon.
func TestTimesOfExportsThatAreTooFarAheadAreRepaired(t *testing.T) {
	f := setup(t)
	x := f.create(NewExport{})
	for _, c := range []struct {
		in   string
		rows int64
	}{{"2 minutes", 0}, {"1 day", 1}} {
		pgtest.Exec(t, f.pool, `update exports set retry_at = now() + $1::interval`, c.in)
		if n := f.repair(); n != c.rows {
			t.Errorf("%s ahead: %d rows are repaired, want %d", c.in, n, c.rows)
		}
	}
	if _, found, err := f.claim(t.Context(), 0); err != nil || !found {
		t.Fatalf("export %s is not claimed: %v", x.ID, err)
	}
	for _, c := range []struct {
		in   string
		rows int64
	}{{"1 minute", 0}, {"1 day", 1}} {
		pgtest.Exec(t, f.pool, `update blobs set lease_until = now() + $1::interval`, c.in)
		if n := f.repair(); n != c.rows {
			t.Errorf("a lease %s ahead: %d rows are repaired, want %d", c.in, n, c.rows)
		}
	}
	if n := pgtest.One[int](t, f.pool, `select count(*) from blobs where lease_until between now() + interval '30 seconds'
		and now() + interval '2 minutes'`); n != 1 {
		t.Error("the lease does not end soon")
	}
}

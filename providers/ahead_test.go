package providers_test

import (
	"testing"

	"lemma/pgtest"
)

// The meter of the tests of a workspace that is further ahead than ten tests is free.
func TestMetersOfTestsThatAreTooFarAheadAreFree(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, c := range []struct {
		ahead string
		rows  int64
	}{{"1 minute", 0}, {"1 day", 1}} {
		pgtest.Exec(t, b.Pool, `insert into provider_test_meters (workspace_id, next_free_at) values ($1, now() + $2::interval)
			on conflict (workspace_id) do update set next_free_at = excluded.next_free_at`, b.Workspace, c.ahead)
		for _, r := range b.accounts.Repairs() {
			if n, err := r.Run(t.Context()); err != nil || n != c.rows {
				t.Errorf("%s ahead: %d rows are repaired, want %d, %v", c.ahead, n, c.rows, err)
			}
		}
	}
	if err := b.accounts.AcquireTest(t.Context(), b.Workspace); err != nil {
		t.Error(err)
	}
}

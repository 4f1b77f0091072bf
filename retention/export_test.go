package retention

import (
	"testing"

	"lemma/migrations"
)

// CheckRules fails if a table has no retention, or is dropped without a rule.
func CheckRules(t *testing.T) {
	t.Helper()
	kept := Config{1, 1, 1, 1, nil}.kept()
	for _, table := range migrations.Partitioned() {
		d, known := kept[table]
		if !known {
			t.Errorf("%s has no retention", table)
		}
		if _, ruled := uses[table]; ruled != (d > 0) {
			t.Errorf("%s is kept for %v, and has a rule: %v", table, d, ruled)
		}
	}
}

package flows

import (
	"regexp"
	"slices"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/go-cmp/cmp"

	"lemma"
)

// What may be said to have happened is one list: in the program, in the schema
// and in the contract.
func TestStepsAreNamedAlikeEverywhere(t *testing.T) {
	b := setup(t, 0)
	ours := slices.Sorted(slices.Values(stepEvents))
	var check string
	b.must(b.pool.QueryRow(bg, `select pg_get_constraintdef(oid) from pg_constraint where conname = 'enrollment_steps_event' and conrelid = 'enrollment_steps'::regclass`).Scan(&check))
	var schema []string
	for _, m := range regexp.MustCompile(`'(\w+)'`).FindAllStringSubmatch(check, -1) {
		schema = append(schema, m[1])
	}
	if d := cmp.Diff(ours, slices.Sorted(slices.Values(schema))); d != "" {
		t.Errorf("the schema's check: %s", d)
	}
	doc, err := openapi3.NewLoader().LoadFromData(lemma.OpenAPI)
	b.must(err)
	var contract []string
	for _, name := range doc.Components.Schemas["EnrollmentHistory"].Value.Properties["steps"].Value.Items.Value.Properties["event"].Value.Enum {
		contract = append(contract, name.(string))
	}
	if d := cmp.Diff(ours, slices.Sorted(slices.Values(contract))); d != "" {
		t.Errorf("the contract: %s", d)
	}
}

package sender

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A parameter without a value would be null.
func TestEveryParameterOfACommitHasAValue(t *testing.T) {
	t.Parallel()
	values := slices.Sorted(maps.Keys((&Sender{}).commitValues(&claim{}, nil, ending{})))
	if d := cmp.Diff(values, slices.Sorted(slices.Values(commitSplit.names))); d != "" {
		t.Errorf("values and parameters differ: %s", d)
	}
	for _, name := range commitWindow.names {
		if !slices.Contains(values, name) {
			t.Errorf("%s has no value", name)
		}
	}
}

func TestParametersAreNumbered(t *testing.T) {
	t.Parallel()
	s := named(`select @a, @b, @a::text[]`)
	if d := cmp.Diff(statement{"select $1, $2, $1::text[]", []string{"a", "b"}}, s, cmp.AllowUnexported(statement{})); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]any{1, 2}, s.args(map[string]any{"b": 2, "a": 1})); d != "" {
		t.Error(d)
	}
}

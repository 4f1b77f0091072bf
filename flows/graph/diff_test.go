package graph

import (
	"fmt"
	"maps"
	"strings"
	"testing"
)

// The differences of nested objects with long names are one difference, not one for each
// field with its whole place.
func TestADiffIsNotLongerThanItsValues(t *testing.T) {
	t.Parallel()
	deep := func(value int, rest map[string]any) map[string]any {
		fields := map[string]any{}
		for i := range 2_000 {
			fields[fmt.Sprint("f", i)] = value
		}
		var tree any = fields
		for range 27 {
			tree = map[string]any{strings.Repeat("~", 1_000): tree}
		}
		all := map[string]any{"tree": tree}
		maps.Copy(all, rest)
		return all
	}
	var all []Difference
	compare("", deep(1, map[string]any{"x": 1}), deep(2, map[string]any{"x": 2}), &all)
	size := 0
	for _, d := range all {
		size += d.size()
	}
	if size > 512<<10 || len(all) < 2 {
		t.Errorf("%d differences have %d bytes", len(all), size)
	}
}

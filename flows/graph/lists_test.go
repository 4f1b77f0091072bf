package graph

import "testing"

// Columns that are lists are read as lists, and may be null.
func TestConditionsReadLists(t *testing.T) {
	t.Parallel()
	columns := []Column{{"tags", "text[]"}, {"sizes", "integer[]"}, {"grid", "integer[]"}, {"flags", "boolean[]"}, {"none", "text[]"}}
	vars := Vars{Profile: object(t,
		`{"tags": ["vip", null, "new"], "sizes": [38, 40], "grid": [[1, 2], [3, 4]], "flags": [true, false], "none": null}`), Now: noon}
	for expression, want := range map[string]bool{
		`"vip" in profile.tags`:                     true,
		`"old" in profile.tags`:                     false,
		`size(profile.tags) == 3`:                   true,
		`profile.tags[1] == null`:                   true,
		`profile.tags.exists(t, t == "new")`:        true,
		`40 in profile.sizes`:                       true,
		`profile.sizes.all(s, s > 38)`:              false,
		`profile.grid[1][0] == 3`:                   true,
		`profile.flags[0] && !profile.flags[1]`:     true,
		`has(profile.none)`:                         false,
		`has(profile.none) && "x" in profile.none`:  false,
		`!has(profile.none) || "x" in profile.none`: true,
		`profile.sizes == [38, 40]`:                 true,
	} {
		got, err := mustCompile(t, columns, expression).Eval(vars)
		if err != nil || got != want {
			t.Errorf("%s: %v, %v", expression, got, err)
		}
	}
}

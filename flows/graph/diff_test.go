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
	compare("", deep(1, map[string]any{"x": 1}), deep(2, map[string]any{"x": 2}), false, &all)
	size := 0
	for _, d := range all {
		size += d.size()
	}
	if size > 512<<10 || len(all) < 2 {
		t.Errorf("%d differences have %d bytes", len(all), size)
	}
}

// Fields of data and layout that are empty or null are values: they are kept as they are written.
func TestADiffOfWhatIsKept(t *testing.T) {
	t.Parallel()
	of := func(data, layout string) *Definition {
		d, err := Read([]byte(`{"layout":` + layout + `,"nodes":{"a/b":{"type":"webhook","data":` + data + `,"layout":` + layout + `}}}`))
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	for _, c := range [][2]string{
		{`{"a":"","b":1}`, `{"b":1}`}, {`{"a":null,"b":1}`, `{"b":1}`}, {`{"a":[],"b":1}`, `{"a":"","b":1}`}, {`{"a":{"c":{}}}`, `{"a":{}}`},
		{`{"a":[{}],"b":1}`, `{"a":[{},{}],"b":1}`}, {`{"a":null}`, `{"a":""}`}, {`{"b":1}`, `{"b":1,"a":null}`},
	} {
		for name, all := range map[string][]Difference{
			"data": Diff(of(c[0], `{}`), of(c[1], `{}`)), "layout": Diff(of(`{}`, c[0]), of(`{}`, c[1]))} {
			n := map[string]int{"data": 1, "layout": 2}[name]
			if len(all) != n {
				t.Errorf("%s of %s: %d differences, want %d: %v", name, c, len(all), n, all)
			}
		}
	}
	for _, d := range Diff(of(`{"a":null,"b":[]}`, `{}`), of(`{"b":[],"c":null}`, `{}`)) {
		got := fmt.Sprintf("%s %s %s %s", d.Op, d.Pointer, d.From, d.To)
		if got != "remove /nodes/a~1b/data/a null " && got != "add /nodes/a~1b/data/c  null" {
			t.Error(got)
		}
	}
	if all := Diff(of(`{}`, `{}`), &Definition{Nodes: map[string]Node{"a/b": {Type: "webhook"}}}); len(all) != 0 {
		t.Errorf("empty data and layouts: %v", all)
	}
}

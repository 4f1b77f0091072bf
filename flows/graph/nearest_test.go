package graph

import (
	"fmt"
	"strings"
	"testing"
)

// The hints of a definition compare so much and no more. Small ones have all hints.
func TestHintsAreBounded(t *testing.T) {
	given := func(known, length, unknown int) (n int) {
		names := map[string]string{}
		for i := range known {
			names[fmt.Sprintf("%s%04d", strings.Repeat("x", length-4), i)] = "text"
		}
		h := &hints{}
		for i := range unknown {
			if hint(h, fmt.Sprintf("%s%04dy", strings.Repeat("x", length-4), i), names) != "" {
				n++
			}
		}
		return n
	}
	if n := given(4096, 60, 1_000); n != 1 {
		t.Errorf("%d hints about 1,000 long names of 4,096", n)
	}
	if n := given(30, 12, 1_000); n != 1_000 {
		t.Errorf("%d hints about 1,000 names of 30", n)
	}
}

// Unknown columns of fields and of conditions, and unknown nodes, share the bound.
func TestADefinitionWithManyUnknownNames(t *testing.T) {
	var columns []Column
	for i := range 1_600 {
		columns = append(columns, Column{fmt.Sprintf("%s%04d", strings.Repeat("x", 56), i), "text"})
	}
	var nodes strings.Builder
	for i := range 90 {
		unknown := fmt.Sprintf("%s%04dy", strings.Repeat("x", 55), i)
		fmt.Fprintf(&nodes, `"n%d":{"type":"branch","cases":[{"if":"profile.%s == 'a'","next":"%s"}],"else":"e"},`, i, unknown, unknown)
		fmt.Fprintf(&nodes, `"w%d":{"type":"webhook","endpoint_id":"whe_1","columns":["%s"],"next":"e"},`, i, unknown)
	}
	text := `{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"n0","nodes":{` +
		nodes.String() + `"e":{"type":"exit"}}}`
	_, err := Compile([]byte(text), ourFlow, Facts{Columns: columns})
	if err == nil {
		t.Fatal("it is valid")
	}
	if n := strings.Count(err.Error(), "did you mean"); n == 0 || n > 20 {
		t.Errorf("%d hints: %.300s", n, err)
	}
}

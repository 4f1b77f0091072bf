package graph

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// A compiled definition keeps the columns that it names, and not all of its audience.
func TestAGraphKeepsTheColumnsThatItNames(t *testing.T) { //nolint:paralleltest // it measures the heap
	var columns []Column
	for i := range 490 {
		columns = append(columns, Column{fmt.Sprintf("c%d%s", i, strings.Repeat("x", 1_000)), "text"})
	}
	text := []byte(fmt.Sprintf(`{"audience_id":"aud_06h2pvp3d1wy3ajf39ft2ebd58",
		"triggers":[{"type":"event","event":"go","condition":"profile.%s != 'z'"}],"recurrence":{"policy":"per_event"},
		"start":"e","nodes":{"e":{"type":"exit"}}}`, columns[0].Name))
	before := heap()
	var all []*Graph
	for range 50 {
		own := make([]Column, len(columns)) // each is read anew
		for i, c := range columns {
			own[i] = Column{strings.Clone(c.Name), c.Type}
		}
		g, err := Compile(text, ourFlow, Facts{Columns: own, Published: true})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, g)
	}
	if each := (heap() - before) / 50; each > uint64(80*len(text)) {
		t.Errorf("a graph of a definition of %d bytes takes %d", len(text), each)
	}
	if kept := len(all[0].Columns()); kept != 1 {
		t.Errorf("it reads %d columns", kept)
	}
	runtime.KeepAlive(all)
}

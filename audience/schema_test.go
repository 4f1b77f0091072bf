package audience

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"lemma/page"
)

// The names of a schema are bounded, whatever a hostile source answers: JSON has six bytes for
// one that is not printable.
func TestNamesOfASchemaAreBounded(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]func(i int) (schema, table, column string){
		"columns of one table":  func(int) (string, string, string) { return "s", "t", strings.Repeat("\x01", 690) },
		"a table for each":      func(i int) (string, string, string) { return "s", fmt.Sprint(i, strings.Repeat("\xffa", 345)), "c" },
		"a schema for each":     func(i int) (string, string, string) { return fmt.Sprint(i, strings.Repeat("x", 690)), "t", "c" },
		"names that are common": func(i int) (string, string, string) { return "public", fmt.Sprint("t", i/20), "c" },
	} {
		var l tableList
		for i := range maxSchemaColumns - 1 {
			schema, table, column := of(i)
			l.add(schema, table, TableColumn{Name: column})
		}
		text, err := json.Marshal(l.Schema)
		if err != nil || len(text) > 2*page.MaxBytes {
			t.Errorf("%s: %d bytes, %v", name, len(text), err)
		}
		if common := name == "names that are common"; l.Truncated == common {
			t.Errorf("%s: truncated is %v", name, l.Truncated)
		}
	}
	var l tableList
	for range maxSchemaColumns {
		l.add("s", "t", TableColumn{Name: "c"})
	}
	if !l.Truncated || len(l.Tables) != 1 || len(l.Tables[0].Columns) != maxSchemaColumns {
		t.Errorf("truncated is %v with %d tables", l.Truncated, len(l.Tables))
	}
}

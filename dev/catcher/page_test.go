package catcher

import (
	"fmt"
	"strings"
	"testing"
)

// Nested parts are read up to mostNested levels.
func TestNestedParts(t *testing.T) {
	t.Parallel()
	for depth, want := range map[int]string{0: "x", mostNested: "x", mostNested + 1: "", 2000: ""} {
		var raw strings.Builder
		for i := range depth {
			fmt.Fprintf(&raw, "Content-Type: multipart/mixed; boundary=b%d\r\n\r\n--b%d\r\n", i, i)
		}
		raw.WriteString("Content-Type: text/plain\r\n\r\nx")
		if got := read([]byte(raw.String())).Text; got != want {
			t.Errorf("a text %d parts deep is shown as %q", depth, got)
		}
	}
}

package audience

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"lemma"
)

// Further rows of a profile are kept if their addresses differ, up to bounds.
func TestFurtherRowsOfAProfile(t *testing.T) {
	t.Parallel()
	row := func(key, token string, bytes int) Row {
		return Row{Key: key, Push: token, Payload: strings.Repeat("x", bytes)}
	}
	f := Found{Rows: map[string]Row{}, Others: map[string][]Row{}, More: map[string][]lemma.Channel{}, Left: map[string]bool{}}
	for _, r := range []Row{row("a", "", 10), row("a", "t1", 10), row("a", "t1", 20), row("a", "", 10), row("a", "t2", 10)} {
		f.add(r, 100_000)
	}
	if len(f.Others["a"]) != 2 || f.Rows["a"].Push != "" || f.More["a"] != nil || f.Others["a"][1].Push != "t2" {
		t.Errorf("%+v", f)
	}
	f.add(row("a", "t3", maxOthersBytes), 100_000)
	if len(f.Others["a"]) != 2 || !slices.Equal(f.More["a"], []lemma.Channel{lemma.Push}) {
		t.Error("a profile has more than its bytes")
	}
	for i := range 2 * maxOthers {
		f.add(row("b", fmt.Sprint(i), 10), 100_000)
	}
	if len(f.Others["b"]) != maxOthers || len(f.More["b"]) != 1 {
		t.Errorf("%d further rows are kept", len(f.Others["b"]))
	}
	for i := range 2 * maxOthers {
		f.add(Row{Key: "d", Email: "d@shop.example", Push: fmt.Sprint(i)}, 100_000)
	}
	if !slices.Equal(f.More["d"], []lemma.Channel{lemma.Push}) {
		t.Errorf("rows with one email address that are left out: %v", f.More["d"])
	}
	f.add(row("c", "t", 10), 100_000)
	f.add(row("c", "u", 50_000), f.Bytes+1000)
	f.add(row("c", "v", 10), 100_000)
	if _, kept := f.Rows["c"]; kept || !f.Left["c"] || len(f.Others["c"]) > 0 {
		t.Error("a profile beyond the bytes is not left")
	}
}

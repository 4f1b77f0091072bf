package audience

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"lemma/page"
)

// TestLookupKeepsABoundedNumberOfBytes reads rows of which not all are kept, and an opt-out
// in a later row of one that is.
func TestLookupKeepsABoundedNumberOfBytes(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	x := b.keyed(t, "select k, repeat('x', 1000) as email from (values (1), (2), (1), (3)) v (k)")
	t.Cleanup(b.Close)
	for _, c := range []struct{ bytes, rows, left int }{{0, 1, 2}, {1001, 1, 2}, {2010, 2, 1}, {4000, 3, 0}} {
		got, err := b.Lookup(t.Context(), b.Workspace, x.ID, nil, []string{"1", "2", "3", "4"}, c.bytes)
		if err != nil || len(got.Rows) != c.rows || len(got.Left) != c.left || got.Bytes != 1003*c.rows {
			t.Errorf("%d bytes: %d rows of %d, %v left, %v", c.bytes, len(got.Rows), got.Bytes, got.Left, err)
		}
	}
}

// TestALookupTakesLittleMemory reads many large rows of one profile. It is not parallel,
// since it measures memory.
func TestALookupTakesLittleMemory(t *testing.T) {
	b := setup(t, dev)
	x := b.keyed(t, "select 1 as k, 'a@shop.example' as email, repeat('x', 60000) as big from generate_series(1, 900)")
	t.Cleanup(b.Close)
	var before, now runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	rows, most := 0, uint64(0)
	err := b.LookupEach(t.Context(), b.Workspace, x.ID, []string{"big"}, []string{"1"}, func(Row) error {
		if rows++; rows%100 == 0 {
			runtime.GC()
			runtime.ReadMemStats(&now)
			most = max(most, now.HeapAlloc-min(now.HeapAlloc, before.HeapAlloc))
		}
		return nil
	})
	if err != nil || rows != 900 || most > 3<<20 {
		t.Errorf("%d rows take %d KB: %v", rows, most>>10, err)
	}
}

// TestPreviewIsBounded reads rows of more bytes than a preview may have.
func TestPreviewIsBounded(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	wide := func(rows int, char string) Audience {
		var columns strings.Builder
		for i := range 200 {
			fmt.Fprintf(&columns, ", repeat(%s, 2000) as c%d", char, i)
		}
		return b.keyed(t, fmt.Sprintf("select i as k, 'a@shop.example' as email%s from generate_series(1, %d) i", &columns, rows))
	}
	for _, c := range []struct {
		char  string
		rows  int
		shown int
	}{{"'x'", 20, 20}, {"'x'", 50, 20}, {"chr(1)", 3, 3}, {"chr(1)", 4, 3}} { // chr(1) has six bytes in JSON
		p, err := b.Preview(t.Context(), b.Workspace, wide(c.rows, c.char).ID, MaxPreview)
		if err != nil || len(p.Rows) != c.shown || p.Truncated != (c.rows > c.shown) || page.Size(p.Rows) > page.MaxBytes {
			t.Errorf("of %d rows of %s %d are shown, truncated: %v, %v", c.rows, c.char, len(p.Rows), p.Truncated, err)
		}
	}
}

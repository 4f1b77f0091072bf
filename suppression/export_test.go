package suppression

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"lemma"
	"lemma/pgtest"
)

// An export with a filter that leaves few rows reads the list in parts, and ends a page when
// its time has passed. Its pages have each row once.
func TestAnExportWithAFilter(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	s, ws := New(pool), pgtest.Workspace(t, pool)
	want := []string{"address,channel,cause,detail"}
	for i := range 100 {
		e := Entry{ID: lemma.NewID(), Channel: lemma.Email, Address: person(i), Cause: Manual}
		if i%40 == 35 {
			e.Cause = Complaint
			want = append(want, person(i)+",email,complaint,")
		}
		if _, _, err := s.Add(t.Context(), ws, e); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		limits exportLimits
		pages  int
	}{
		{exportLimits{rows: 100, bytes: 1 << 20, part: 10}, 11},
		{exportLimits{rows: 100, bytes: 1 << 20, part: 10, time: time.Hour}, 1},
		{exportLimits{rows: 1, bytes: 1 << 20, part: 10, time: time.Hour}, 2},
	} {
		got, after, pages := []string(nil), uuid.Nil, 0
		for pages == 0 || after != uuid.Nil {
			var text bytes.Buffer
			var err error
			if after, err = s.export(t.Context(), ws, Filter{Cause: Complaint}, after, &text, c.limits); err != nil || pages > 20 {
				t.Fatal(pages, err)
			}
			lines := strings.Split(strings.TrimSpace(text.String()), "\n")
			got, pages = append(got, lines[min(pages, 1):]...), pages+1
		}
		if d := cmp.Diff(want, got); d != "" || pages != c.pages {
			t.Errorf("%+v: %d pages: %s", c.limits, pages, d)
		}
	}
}

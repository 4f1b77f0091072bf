package page_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"lemma/page"
)

// inParts reads all things whose number ends with 3, in a workspace and with a name, and
// returns how many pages it took.
func inParts(t *testing.T, db page.Rows, list page.List[thing], sort string, limit int) (got []thing, pages int) {
	t.Helper()
	q := page.Query{Limit: limit, Sort: sort, Name: "thing"}
	for pages == 0 || q.Cursor != "" {
		s, err := list.Start(q, 1)
		if err != nil {
			t.Fatal(err)
		}
		s.Unindexed()
		s.And("t.number % 10 = " + s.Arg(3))
		some, next, err := s.ReadParts(t.Context(), db, "things t where t.workspace_id = $1", func(end page.Clauses) ([]thing, error) {
			rows, _ := db.Query(t.Context(), selectThings+" and "+end.Where+" "+end.Order, end.Args...)
			return pgx.CollectRows(rows, pgx.RowToStructByName[thing])
		})
		if err != nil || len(some) > limit || pages > 100 {
			t.Fatalf("%d rows on page %d: %v", len(some), pages, err)
		}
		got, q.Cursor, pages = append(got, some...), next, pages+1
	}
	return got, pages
}

// A list that is read in parts has the same rows in the same order, whatever the size of a
// part and of a page.
func TestParts(t *testing.T) {
	t.Parallel()
	pool, _ := fill(t)
	for _, sort := range []string{"", "created_at", "name", "-name", "time", "-time", "number", "-number"} {
		for _, part := range []int{1, 3, 10, 19, 20, 21, 1000} {
			for _, limit := range []int{1, 2, 3} {
				list := things
				list.Part, list.PartTime = part, time.Hour
				got, pages := inParts(t, pool, list, sort, limit)
				want := []int{3, 13}
				if sort == "" || sort[0] == '-' {
					want = []int{13, 3}
				}
				if d := cmp.Diff(want, numbers(got)); d != "" {
					t.Errorf("%q, parts of %d, pages of %d: %s", sort, part, limit, d)
				}
				if most := 1 + 2/limit; pages > most {
					t.Errorf("%q, parts of %d, pages of %d: %d pages", sort, part, limit, pages)
				}
			}
		}
	}
}

// After PartTime a page ends with what was found, also with nothing, and the next one
// continues behind the part.
func TestPartsEndInTime(t *testing.T) {
	t.Parallel()
	pool, _ := fill(t)
	list := things
	list.Part, list.PartTime = 4, time.Nanosecond
	got, pages := inParts(t, pool, list, "number", 10)
	if d := cmp.Diff([]int{3, 13}, numbers(got)); d != "" || pages != 6 { // five parts, and the end
		t.Errorf("%d pages: %s", pages, d)
	}
}

// A page that ends because of its bytes continues behind its last row, not behind the part.
func TestPartsOfLargeRows(t *testing.T) {
	t.Parallel()
	pool, _ := fill(t)
	if _, err := pool.Exec(t.Context(), `update things t set name = 'thing' || repeat('x', 3 << 20) where number % 10 = 3`); err != nil {
		t.Fatal(err)
	}
	list := things
	list.Part, list.PartTime = 20, time.Nanosecond
	if got, pages := inParts(t, pool, list, "number", 10); pages != 2 || fmt.Sprint(numbers(got)) != "[3 13]" {
		t.Errorf("%d pages with %v", pages, numbers(got))
	}
}

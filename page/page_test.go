package page_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/page"
	"lemma/pgtest"
)

type thing struct {
	ID        uuid.UUID
	Name      string
	Status    string
	CreatedAt time.Time
	Number    int
}

var things = func() page.List[thing] {
	id := func(t thing) uuid.UUID { return t.ID }
	l := page.Named("things", "t.", id, func(t thing) string { return t.Name })
	l.Status = "t.status"
	l.Orders["time"] = page.ByTime("t.created_at", func(t thing) time.Time { return t.CreatedAt }, "t.id", id)
	l.Orders["number"] = page.ByNumber("t.number", func(t thing) int { return t.Number })
	mixed := page.ByName("t.name", func(t thing) string { return t.Name }, "t.id", id)
	mixed[0].Reverse = true
	l.Orders["mixed"] = mixed
	return l
}()

const selectThings = `select t.id, t.name, t.status, t.created_at, t.number from things t where t.workspace_id = $1`

var monday = time.Date(2026, 6, 1, 9, 0, 0, 0, time.UTC)

func setup(t *testing.T) (read func(q page.Query) ([]thing, string, error), all []thing) {
	pool, all := fill(t)
	return func(q page.Query) ([]thing, string, error) {
		return things.Read(t.Context(), pool, q, 1, selectThings, pgx.RowToStructByName[thing])
	}, all
}

// fill makes 20 things, of which some have one name and one time.
func fill(t *testing.T) (pool *pgxpool.Pool, all []thing) {
	pool = pgtest.DB(t)
	ctx := t.Context()
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := pool.Exec(ctx, sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	exec(`create table things (workspace_id int, id uuid primary key, name text collate "C", status text, created_at timestamptz, number int)`)
	for i := range 20 {
		one := thing{lemma.NewID(), fmt.Sprintf("Thing %d%%_", i/3), []string{"on", "off"}[i%2], monday.Add(time.Duration(i/2) * time.Hour),
			i}
		all = append(all, one)
		exec(`insert into things values (1, $1, $2, $3, $4, $5)`, one.ID, one.Name, one.Status, one.CreatedAt, one.Number)
	}
	exec(`insert into things values (2, $1, 'another workspace', 'on', now(), 0)`, lemma.NewID())
	return pool, all
}

// A caller that follows the cursors gets each row once, in the requested order.
func TestPagesAreTheWholeListInItsOrder(t *testing.T) {
	t.Parallel()
	read, all := setup(t)
	byID := func(a, b thing) int { return strings.Compare(a.ID.String(), b.ID.String()) }
	byName := func(a, b thing) int { return strings.Compare(a.Name, b.Name) }
	then := func(orders ...func(a, b thing) int) func(a, b thing) int {
		return func(a, b thing) int {
			for _, o := range orders {
				if c := o(a, b); c != 0 {
					return c
				}
			}
			return 0
		}
	}
	backwards := func(o func(a, b thing) int) func(a, b thing) int { return func(a, b thing) int { return o(b, a) } }
	byTime := func(a, b thing) int { return a.CreatedAt.Compare(b.CreatedAt) }
	for sort, order := range map[string]func(a, b thing) int{
		"": backwards(byID), "-created_at": backwards(byID), "created_at": byID,
		"name": then(byName, byID), "-name": backwards(then(byName, byID)),
		"time": then(byTime, byID), "-time": backwards(then(byTime, byID)), "number": byID, "-number": backwards(byID),
		"mixed": then(backwards(byName), byID), "-mixed": then(byName, backwards(byID)),
	} {
		want := slices.SortedFunc(slices.Values(all), order)
		for _, limit := range []int{1, 3, 19, 20, 21} {
			var got []thing
			q := page.Query{Limit: limit, Sort: sort}
			for pages := 0; pages == 0 || q.Cursor != ""; pages++ {
				some, next, err := read(q)
				if err != nil || pages > len(all) {
					t.Fatalf("%q by %d: %v", sort, limit, err)
				}
				got, q.Cursor = append(got, some...), next
			}
			if d := cmp.Diff(numbers(want), numbers(got)); d != "" {
				t.Errorf("%q by %d: %s", sort, limit, d)
			}
		}
	}
}

// A page of large rows ends before its limit, and the next page begins where it ends.
func TestPagesOfLargeRows(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	const rows = 20
	_, err := pool.Exec(t.Context(), `
		create table things as
		select 1 as workspace_id, gen_random_uuid() as id, repeat('x', 1000 * 1000) as name, '' as status, now() as created_at, n as number
		from generate_series(1, `+fmt.Sprint(rows)+`) n;
		update things set name = repeat('y', 6 * 1000 * 1000) where number = 7`)
	if err != nil {
		t.Fatal(err)
	}
	readers := map[string]func(page.Query) ([]thing, string, error){
		"Read": func(q page.Query) ([]thing, string, error) {
			return things.Read(t.Context(), pool, q, 1, selectThings, pgx.RowToStructByName[thing])
		},
		"ReadBy": func(q page.Query) ([]thing, string, error) {
			return things.ReadBy(q, func(end page.Clauses) ([]thing, error) {
				found, _ := pool.Query(t.Context(), selectThings+" and "+end.Where+" "+end.Order, end.Args...)
				return pgx.CollectRows(found, pgx.RowToStructByName[thing])
			}, 1)
		},
	}
	for name, read := range readers {
		next, number := "", 1
		for number == 1 || next != "" {
			some, cursor, err := read(page.Query{Limit: 10, Sort: "number", Cursor: next})
			if err != nil || len(some) == 0 {
				t.Fatalf("%s: %d rows, %v", name, len(some), err)
			}
			bytes := 0
			for _, one := range some {
				if bytes += len(one.Name); one.Number != number {
					t.Errorf("%s: row %d, want %d", name, one.Number, number)
				}
				number++
			}
			if bytes > page.MaxBytes && len(some) > 1 {
				t.Errorf("%s: %d rows of %d bytes", name, len(some), bytes)
			}
			next = cursor
		}
		if number != rows+1 {
			t.Errorf("%s: %d rows", name, number-1)
		}
	}
}

func numbers(all []thing) (list []int) {
	for _, one := range all {
		list = append(list, one.Number)
	}
	return list
}

func TestFilters(t *testing.T) {
	t.Parallel()
	read, _ := setup(t)
	at := func(hours int) *time.Time { t := monday.Add(time.Duration(hours) * time.Hour); return &t }
	for name, c := range map[string]struct {
		q    page.Query
		want []int
	}{
		"a status":               {page.Query{Status: "off", CreatedAfter: at(8)}, []int{17, 19}},
		"a part of a name":       {page.Query{Name: "hing 1"}, []int{3, 4, 5}},
		"in any case":            {page.Query{Name: "THING 1"}, []int{3, 4, 5}},
		"a name is no pattern":   {page.Query{Name: "T%"}, nil},
		"... but its own text":   {page.Query{Name: "6%_"}, []int{18, 19}},
		"from a time on":         {page.Query{CreatedAfter: at(9)}, []int{18, 19}},
		"before a time":          {page.Query{CreatedBefore: at(1)}, []int{0, 1}},
		"all of them together":   {page.Query{Status: "on", Name: "thing 1", CreatedAfter: at(2), CreatedBefore: at(3)}, []int{4}},
		"no row has this status": {page.Query{Status: "lost"}, nil},
	} {
		c.q.Limit, c.q.Sort = 200, "created_at"
		got, next, err := read(c.q)
		if d := cmp.Diff(c.want, numbers(got)); d != "" || next != "" || err != nil {
			t.Errorf("%s: %v %q %s", name, err, next, d)
		}
	}
}

// A cursor is valid for its list, order and filter. Any client can write one: none
// that Postgres cannot read reaches it.
func TestCursorsAreBound(t *testing.T) {
	t.Parallel()
	read, all := setup(t)
	good := page.Query{Limit: 2, Sort: "name", Status: "on", Name: "thing", CreatedAfter: &monday}
	_, next, err := read(good)
	if err != nil || next == "" {
		t.Fatalf("%q, %v", next, err)
	}
	good.Cursor = next
	if _, _, err := read(good); err != nil {
		t.Fatal(err)
	}
	change := func(with func(*page.Query)) page.Query { q := good; with(&q); return q }
	later := monday.Add(time.Second)
	raw, err := base64.RawURLEncoding.DecodeString(next)
	if err != nil {
		t.Fatal(err)
	}
	forged := func(position string) page.Query {
		return change(func(q *page.Query) {
			q.Cursor = base64.RawURLEncoding.EncodeToString(append(slices.Clone(raw[:9]), position...))
		})
	}
	for name, q := range map[string]page.Query{
		"another order":      change(func(q *page.Query) { q.Sort = "-name" }),
		"another status":     change(func(q *page.Query) { q.Status = "off" }),
		"no status":          change(func(q *page.Query) { q.Status = "" }),
		"another name":       change(func(q *page.Query) { q.Name = "thin" }),
		"another time":       change(func(q *page.Query) { q.CreatedAfter = &later }),
		"another bound":      change(func(q *page.Query) { q.CreatedAfter, q.CreatedBefore = nil, &monday }),
		"an invented cursor": change(func(q *page.Query) { q.Cursor = "x" }),
		"an id":              change(func(q *page.Query) { q.Cursor = all[0].ID.String() }),
		"no position":        change(func(q *page.Query) { q.Cursor = base64.RawURLEncoding.EncodeToString(raw[:9]) }),
		"not a list":         forged(`{}`),
		"too few":            forged(`["a"]`),
		"too many":           forged(`["a","` + all[0].ID.String() + `","c"]`),
		"not a UUID":         forged(`["a","b"]`),
		"NUL":                forged(`["\u0000","` + all[0].ID.String() + `"]`),
	} {
		_, _, err := read(q)
		var e *lemma.Error
		if !errors.As(err, &e) || e.Kind != lemma.Invalid || e.Fields[0].Pointer != "?cursor" || e.Fields[0].Code != "invalid_cursor" {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, order := range []string{"time", "number"} {
		q := page.Query{Limit: 2, Sort: order}
		_, next, err := read(q)
		if err != nil {
			t.Fatal(err)
		}
		raw, _ := base64.RawURLEncoding.DecodeString(next)
		for _, position := range []string{"zzzzzzzzzzzzzz", "-1", "1e9", "99999999999", ""} {
			q.Cursor = base64.RawURLEncoding.EncodeToString([]byte(string(raw[:9]) + `["` + position + `","` + all[0].ID.String() + `"]`))
			if order == "number" {
				q.Cursor = base64.RawURLEncoding.EncodeToString([]byte(string(raw[:9]) + `["` + position + `"]`))
			}
			if _, _, err := read(q); err != nil && lemma.KindOf(err) != lemma.Invalid {
				t.Errorf("%s %q: %v", order, position, err)
			}
		}
	}
	if _, _, err := read(page.Query{Limit: 2, Sort: "size"}); lemma.KindOf(err) != lemma.Invalid {
		t.Errorf("an order that the list does not have: %v", err)
	}
}

// Between also finds rows whose ids differ from their time of creation by at most
// two days.
func TestBoundsOfIDs(t *testing.T) {
	t.Parallel()
	before, after := monday, monday.Add(time.Hour)
	s, err := things.Start(page.Query{Limit: 1, CreatedAfter: &before, CreatedBefore: &after}, 1)
	if err != nil {
		t.Fatal(err)
	}
	s.Between("t.id")
	end, err := s.End()
	if err != nil || !strings.Contains(end.Where, "t.id >= $4 and t.id < $5") {
		t.Fatalf("%+v, %v", end, err)
	}
	for i, want := range map[int]time.Time{3: before.Add(-48 * time.Hour), 4: after.Add(48 * time.Hour)} {
		seconds, nanos := end.Args[i].(uuid.UUID).Time().UnixTime()
		if got := time.Unix(seconds, nanos); !got.Equal(want) {
			t.Errorf("%s, not %s", got, want)
		}
	}
}

package audience

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lemma"
	"lemma/audience/wire"
)

// largeRows are rows of which those of profiles 2, 3, 5 and 6 are too large.
const largeRows = `select id, email, opted_out, %[1]s as bio from (
	select 1 as id, 'one@example.com' as email, %[2]s as opted_out, 3 as size union all
	select 2, 'two@example.com', %[2]s, 9000000 union all
	select 3, 'three@example.com', %[2]s, 1048577 union all
	select 4, 'four@example.com', %[2]s, 900000 union all
	select 5, 'five@example.com', %[3]s, 1200000 union all
	select 6, repeat('six', 700000), %[2]s, 3 union all
	select 7, 'seven@example.com', %[2]s, 3) as t order by id`

func testLargeRows(t *testing.T, b bundle, sql string) {
	t.Helper()
	x, err := b.Create(t.Context(), b.Workspace, NewAudience{ID: lemma.NewID(), DataSourceID: b.source, Name: "all", SQL: sql,
		KeyColumn: "id", EmailColumn: "email", OptedOutColumn: "opted_out"})
	if err != nil {
		t.Fatal(err)
	}
	var got []Row
	read, err := b.Stream(t.Context(), b.Workspace, x.ID, []string{"bio", "id"}, func(r Row) error {
		r = r.clone()
		if len(r.Payload) > 100 {
			r.Payload = fmt.Sprint(len(r.Payload))
		}
		got = append(got, r)
		return nil
	})
	want := []Row{
		{Key: "5", Email: "five@example.com", OptedOut: true, Payload: "{}"}, // its payload is not read
		{Key: "1", Email: "one@example.com", Payload: `{"bio":"xxx","id":1}`},
		{Key: "2", Email: "two@example.com", TooLarge: true, Payload: "{}"},
		{Key: "3", Email: "three@example.com", TooLarge: true, Payload: "{}"},
		{Key: "4", Email: "four@example.com", Payload: "900017"},
		{Key: "6", TooLarge: true, Payload: "{}"},
		{Key: "7", Email: "seven@example.com", Payload: `{"bio":"xxx","id":7}`}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil || read != 7 {
		t.Errorf("%d rows, %v\n%s", read, err, diff)
	}
	c, err := b.Audiences.Count(t.Context(), b.Workspace, x.ID, "")
	if want := (Counts{Rows: 7, Sendable: 5, Profiles: 5, Unsubscribed: 1, RowTooLarge: 1}); c != want || err != nil {
		t.Errorf("%+v, %v", c, err) // a count does not read the column that is long
	}
	got = nil // of a lookup, on a connection that is used again
	b.Must(b.CurrentEach(t.Context(), b.Workspace, x.ID, []string{"5", "6", "7"}, func(r Row) error {
		got = append(got, r.clone())
		return nil
	}))
	slices.SortFunc(got, func(a, b Row) int { return strings.Compare(a.Key, b.Key) })
	want = []Row{{Key: "5", Email: "five@example.com", OptedOut: true, Payload: "{}"}, {Key: "6", TooLarge: true, Payload: "{}"},
		{Key: "7", Email: "seven@example.com", Payload: "{}"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	_, err = b.Lookup(t.Context(), b.Workspace, x.ID, []string{"bio"}, []string{"1", "2"}, 1<<20)
	wantCode(t, err, CodeLimit)
}

// Rows that are too large come as such, and end no stream.
func TestRowsThatAreTooLarge(t *testing.T) {
	t.Parallel()
	testLargeRows(t, setup(t, dev), fmt.Sprintf(largeRows, "repeat('x', size)", "false", "true"))
}

// After rows that are too large few are asked for at a time, since they take long.
func TestFetchesOfRowsThatAreTooLarge(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	source, err := wire.Parse(Postgres, b.DSN, b.rules())
	b.Must(err)
	s, err := b.connectPostgres(t.Context(), source, span{time.Minute, time.Minute, 1 << 40})
	b.Must(err)
	defer s.close()
	s.wire().ShortenRows()
	rows, err := s.open(t.Context(), "select repeat('x', 1500000) as bio from generate_series(1, 520) i", []string{"bio"}, 0)
	b.Must(err)
	c := rows.(*pgCursor)
	for n, values := 0, make([][]byte, 1); ; n++ {
		more, err := c.next(values)
		b.Must(err)
		if !more {
			break
		}
		if n == fetchFirst && c.size > 1 {
			t.Fatalf("%d rows are asked for", c.size)
		}
	}
}

// Of many rows that are too large the bytes of the wire are bounded.
func TestManyRowsThatAreTooLarge(t *testing.T) {
	t.Parallel()
	o := dev
	o.MaxRows, o.MaxBytes = 100, 5<<20
	b := setup(t, o)
	x := b.addAudience(t, "select i as id, repeat('x', 2000000) as bio, '' as email from generate_series(1, 50) i")
	n := 0
	_, err := b.Stream(t.Context(), b.Workspace, x.ID, []string{"bio"}, func(Row) error { n++; return nil })
	if wantCode(t, err, CodeLimit); n > 6 || !strings.Contains(err.Error(), "more bytes than one read") {
		t.Errorf("%d rows, %v", n, err)
	}
}

package exports

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"lemma"
	"lemma/pgtest"
)

// pages reads the pages of an export of all rows of a type.
func (f fixture) pages(kind string) (all []read) {
	f.t.Helper()
	x := f.create(NewExport{Type: kind})
	r := &reader{Exports: f.Exports, job: job{Export: x, workspace: f.ws}, pages: make(chan chan read, 1)}
	defer r.all.Wait()
	r.all.Go(func() { r.read(f.t.Context(), types[kind]) })
	for next := range r.pages {
		for page := range next {
			f.must(page.err)
			all = append(all, page)
		}
	}
	return all
}

// wantPages checks that pages have at most some bytes, or one row, and all rows once.
func (f fixture) wantPages(all []read, bytes, rows, most int) {
	f.t.Helper()
	seen, left := map[string]bool{}, rows
	for _, page := range all {
		if n := len(page.rows.data); n > bytes && page.rows.count > 1 {
			f.t.Errorf("a page of %d rows has %d bytes", page.rows.count, n)
		}
		width := len(page.rows.sizes) / page.rows.count
		f.must(page.rows.each(width, func(values [][]byte) error { seen[string(values[0])] = true; return nil }))
		left -= page.rows.count
	}
	if left != 0 || len(seen) != rows || len(all) > most {
		f.t.Errorf("%d rows are missing, %d differ, in %d pages", left, len(seen), len(all))
	}
}

// event stores an event with properties of some bytes.
func (f fixture) event(bytes int) {
	f.t.Helper()
	pgtest.Exec(f.t, f.pool, `insert into trigger_events (workspace_id, key, profile_key, name, properties, occurred_at)
		values ($1, $2, 'p', 'bought', $3, now())`, f.ws, lemma.NewID(), `{"a": "`+strings.Repeat("x", bytes)+`"}`)
}

// A page of large rows ends when it has its bytes, and the next one begins after it. Small
// rows that follow have large pages again.
func TestPagesOfLargeRowsAreBounded(t *testing.T) {
	f := setup(t)
	f.cfg.PageRows, f.cfg.PageBytes = 1000, 64<<10
	for range 50 {
		f.event(15 << 10)
	}
	f.event(100 << 10)
	for range 120 {
		f.event(10)
	}
	f.wantPages(f.pages("events"), f.cfg.PageBytes, 171, 22)
}

// Batches whose rows have more bytes than a page are read in several.
func TestPagesOfBatchesAreBounded(t *testing.T) {
	f := setup(t)
	f.cfg.PageRows, f.cfg.PageBytes = 1000, 64<<10
	origin := lemma.NewID()
	for range 12 {
		f.batch(origin, 10, 2<<10)
	}
	f.wantPages(f.pages("notifications"), f.cfg.PageBytes, 120, 8)
}

// The next page reads as many rows as have its bytes, and at most twice as many as before.
func TestPagesAdaptToTheSizeOfRows(t *testing.T) {
	t.Parallel()
	r := reader{Exports: New(Deps{}, Config{})}
	r.limit.Store(firstRows)
	for _, c := range []struct{ found, bytes, want int }{
		{1000, 1000, 2000}, {2000, 2 << 20, 4000}, {4000, 4, 8000}, {8000, 8, 16_000}, {16_000, 16, 20_000}, {256, 8 << 20, 256},
		{100, 16 << 20, 50}, {1, 9 << 20, 1}, {0, 0, 1}, {1, 0, 2},
	} {
		r.adapt(read{found: c.found, rows: &rows{data: make([]byte, c.bytes)}})
		if got := int(r.limit.Load()); got != c.want {
			t.Errorf("after %d rows of %d bytes the next page has %d rows, want %d", c.found, c.bytes, got, c.want)
		}
	}
}

// batch stores a batch of notifications whose profile keys have some bytes.
func (f fixture) batch(origin uuid.UUID, size, bytes int) {
	f.t.Helper()
	id := lemma.NewID()
	pgtest.Exec(f.t, f.pool, `
		insert into batches (workspace_id, origin_id, id, root_id, provider_id, content_id, size, attempt, max_attempts, status, open)
		values ($1, $2, $3, $3, $2, $2, $4, 1, 2, 'ready', '{}')`, f.ws, origin, id, size)
	pgtest.Exec(f.t, f.pool, `
		insert into notifications (workspace_id, origin_id, key, batch_id, ordinal, profile_key, address)
		select $1, $2, gen_random_uuid(), $3, i, repeat('x', $5), 'a@example.com' from generate_series(1, $4) i`, f.ws, origin, id, size, bytes)
}

package exports

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"lemma"

	"lemma/exports/format"
)

// progress is what an attempt has written so far.
type progress struct{ rows, bytes atomic.Int64 }

// counted counts the bytes of a file.
type counted struct {
	to    io.Writer
	bytes *atomic.Int64
}

func (c counted) Write(p []byte) (int, error) {
	n, err := c.to.Write(p)
	c.bytes.Add(int64(n))
	return n, err
}

// progressEvery is how often the progress of a running export is stored, and its space measured.
const progressEvery = 2 * time.Second

// write writes the rows of an export. Each page is a statement of its own, so that no
// snapshot is held for longer than a page takes. Pages are read while earlier ones are
// written.
func (e *Exports) write(ctx context.Context, j job, to io.Writer) error {
	kind := types[j.Type]
	file, err := format.New(j.Format, counted{to, &j.progress.bytes}, kind.columns, format.Options{KeepFormulas: j.CSVFormulas == "keep"})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	r := &reader{Exports: e, job: j, pages: make(chan chan read, 1)}
	defer r.all.Wait()
	defer stop()
	r.all.Go(func() { r.read(ctx, kind) })
	for next := range r.pages {
		for page := range next {
			if err := j.writePage(page, kind, file); err != nil {
				return fmt.Errorf("export %s: %w", j.Type, err)
			}
		}
	}
	if err := ctx.Err(); err != nil {
		return err // pages may be missing
	}
	return lemma.Wrap(file.Close(), "end the file of an export")
}

// writePage writes the rows of a page, and frees them.
func (j job) writePage(page read, kind rowType, file format.Encoder) error {
	if page.err != nil {
		return page.err
	}
	if err := page.rows.each(len(kind.columns), file.Row); err != nil {
		return err
	}
	j.progress.rows.Add(int64(page.rows.count))
	page.rows.free()
	return nil
}

// rows are some rows in memory: their values, one after the other.
type rows struct {
	data  []byte
	sizes []int32 // of the values; -1 for null
	count int
}

var unused = sync.Pool{New: func() any { return &rows{data: make([]byte, 0, 1<<20)} }}

func newRows() *rows { return unused.Get().(*rows) }

// free lets another page use the memory.
func (r *rows) free() {
	r.data, r.sizes, r.count = r.data[:0], r.sizes[:0], 0
	unused.Put(r)
}

// add copies a row, unless the rows have more than some bytes with it. The first one is
// always copied.
func (r *rows) add(values [][]byte, most int) bool {
	bytes, sizes := len(r.data), len(r.sizes)
	for _, value := range values {
		if value == nil {
			r.sizes = append(r.sizes, -1)
			continue
		}
		r.data = append(r.data, value...)
		r.sizes = append(r.sizes, int32(len(value)))
	}
	if r.count > 0 && len(r.data) > most {
		r.data, r.sizes = r.data[:bytes], r.sizes[:sizes]
		return false
	}
	r.count++
	return true
}

// each calls a function with each row.
func (r *rows) each(width int, write func([][]byte) error) error {
	values, left := make([][]byte, width), r.data
	for i := range r.count {
		for c, size := range r.sizes[i*width : (i+1)*width] {
			if size < 0 {
				values[c] = nil
				continue
			}
			values[c], left = left[:size], left[size:]
		}
		if err := write(values); err != nil {
			return err
		}
	}
	return nil
}

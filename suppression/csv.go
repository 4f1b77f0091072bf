package suppression

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/fence"
)

// Defaults are the channel and the cause of rows that name none.
type Defaults struct {
	Channel lemma.Channel
	Cause   string
}

// Imported counts the rows of an import. Rows are read until the first broken line of
// CSV; those before it are stored.
type Imported struct {
	Read    int // rows, without the header
	Added   int
	Known   int // the address has the cause already, or an earlier row has both
	Invalid int
	Faults  []lemma.Field // of the first invalid rows
}

const (
	// MaxImport is the largest number of rows of an import.
	MaxImport   = 1_000_000
	importChunk = 5_000
	mostFaults  = 100
	maxRow      = 64 << 10 // bytes
)

// byteOrderMark begins the files of Excel.
const byteOrderMark = "\ufeff"

var csvColumns = []string{"address", "channel", "cause", "detail"}

// Import adds the addresses of a CSV file (RFC 4180) with a header. The column
// address is required, and channel, cause and detail are optional. Chunks are
// committed one by one: an import that ended early can be repeated.
func (s *Suppressions) Import(ctx context.Context, ws uuid.UUID, body io.Reader, d Defaults) (done Imported, err error) {
	bounded := &rowReader{body: body, left: maxRow}
	in := bufio.NewReader(bounded)
	if start, _ := in.Peek(len(byteOrderMark)); string(start) == byteOrderMark {
		_, _ = in.Discard(len(byteOrderMark)) // a header that is quoted begins with the quote
	}
	r := csv.NewReader(in)
	r.ReuseRecord, r.TrimLeadingSpace, r.LazyQuotes = true, true, false
	columns, err := readHeader(r)
	if err != nil {
		return done, err
	}
	chunk := make([]Entry, 0, importChunk)
	for {
		bounded.left = maxRow
		record, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil && done.Read == MaxImport {
			err = lemma.Fault("", "too_many_rows", "has more than %d rows; import the rest by another request", MaxImport)
		}
		if err != nil {
			return done, errors.Join(s.store(ctx, ws, chunk, &done), csvFault(err))
		}
		done.Read++
		e, fault := columns.entry(record, d)
		if fault != nil {
			done.fault(*fault)
			continue
		}
		if chunk = append(chunk, e); len(chunk) == importChunk {
			if err := s.store(ctx, ws, chunk, &done); err != nil {
				return done, err
			}
			chunk = chunk[:0]
		}
	}
	return done, s.store(ctx, ws, chunk, &done)
}

var errLongRow = errors.New("a row is longer than 64 KiB")

// rowReader fails after left bytes. The import sets left before each row, since a CSV reader
// allocates without a bound: 24 bytes for each comma of a row.
type rowReader struct {
	body io.Reader
	left int
}

func (r *rowReader) Read(p []byte) (int, error) {
	if r.left <= 0 {
		return 0, errLongRow
	}
	n, err := r.body.Read(p)
	r.left -= n
	return n, err
}

func (s *Suppressions) store(ctx context.Context, ws uuid.UUID, chunk []Entry, done *Imported) error {
	n, named := 0, 0
	err := fence.Transact(ctx, s.pool, func(tx pgx.Tx) (err error) {
		if n, named, err = insert(ctx, tx, ws, chunk); err == nil && n+named == 0 {
			err = fence.ErrUnchanged
		}
		return err
	})
	if err == nil {
		done.Added, done.Known = done.Added+n, done.Known+len(chunk)-n
	}
	return err
}

func (i *Imported) fault(f lemma.Field) {
	i.Invalid++
	if len(i.Faults) < mostFaults {
		f.Pointer = fmt.Sprintf("/rows/%d%s", i.Read, f.Pointer)
		i.Faults = append(i.Faults, f)
	}
}

// header is the position of each of csvColumns; -1 for a column that is missing.
type header []int

func readHeader(r *csv.Reader) (header, error) {
	names, err := r.Read()
	if err != nil {
		return nil, csvFault(err)
	}
	h := header{-1, -1, -1, -1}
	for i, name := range names {
		name = strings.ToLower(strings.TrimSpace(name))
		at := slices.Index(csvColumns, name)
		if at < 0 {
			return nil, lemma.Fault("/header", "unknown_field", "names the column %.50q; must name columns out of %s, separated by commas",
				name, strings.Join(csvColumns, ", "))
		}
		if h[at] >= 0 {
			return nil, lemma.Fault("/header", "repeated", "names %s twice", name)
		}
		h[at] = i
	}
	if h[0] < 0 {
		return nil, lemma.Fault("/header", "required", "must name the column address")
	}
	return h, nil
}

func (h header) entry(record []string, d Defaults) (Entry, *lemma.Field) {
	field := func(i int, otherwise string) string {
		if h[i] < 0 || record[h[i]] == "" {
			return otherwise
		}
		return strings.Clone(record[h[i]])
	}
	e := Entry{ID: lemma.NewID(), Channel: lemma.Channel(field(1, string(d.Channel))), Cause: field(2, d.Cause), Detail: field(3, "")}
	address, ok := canonical(e.Channel, field(0, ""))
	e.Address = address
	switch {
	case e.Channel != lemma.Email && e.Channel != lemma.SMS && e.Channel != lemma.Push:
		return e, &lemma.Field{Pointer: "/channel", Code: "invalid_choice", Detail: "must be email, sms or push"}
	case !ok || !utf8.ValidString(address):
		return e, &lemma.Field{Pointer: "/address", Code: "invalid_address", Detail: "must be an address of the channel " + string(e.Channel)}
	case !slices.Contains(Causes, e.Cause):
		return e, &lemma.Field{Pointer: "/cause", Code: "invalid_choice", Detail: "must be one of " + strings.Join(Causes, ", ")}
	case len(e.Detail) > maxDetail || !utf8.ValidString(e.Detail) || strings.ContainsRune(e.Detail, 0):
		return e, &lemma.Field{Pointer: "/detail", Code: "too_long", Detail: fmt.Sprintf("must be UTF-8 of at most %d bytes", maxDetail)}
	}
	return e, nil
}

// csvFault is the caller's error for CSV that cannot be read. Errors of the
// connection are returned unchanged.
func csvFault(err error) error {
	var broken *csv.ParseError
	switch {
	case errors.As(err, &broken):
		return lemma.Fault("", "bad_csv", "line %d: %s", broken.Line, broken.Err)
	case errors.Is(err, errLongRow):
		return lemma.Fault("", "bad_csv", "%s", err)
	case errors.Is(err, io.EOF):
		return lemma.Fault("/header", "required", "must be CSV with a header")
	}
	return err
}

// exportLimits bound a page of an export.
type exportLimits struct {
	rows  int           // at most
	bytes int           // after which it ends
	part  int           // rows of the list that one statement reads, of which a filter may leave few
	time  time.Duration // after which it ends, with any number of rows
}

var exported = exportLimits{rows: 50_000, bytes: 8 << 20, part: 10_000, time: 2 * time.Second}

// Export writes suppressions as CSV, which Import accepts, in the order of their ids
// and without those whose address was erased,
// and after one of them. It returns the id to go on after if there may be more, otherwise
// uuid.Nil. A page may have no row: it ends after two seconds, however few rows a filter leaves.
func (s *Suppressions) Export(ctx context.Context, ws uuid.UUID, f Filter, after uuid.UUID, to *bytes.Buffer) (last uuid.UUID, err error) {
	last, err = s.export(ctx, ws, f, after, to, exported)
	return last, lemma.Wrap(err, "export suppressions")
}

func (s *Suppressions) export(ctx context.Context, ws uuid.UUID, f Filter, after uuid.UUID, to *bytes.Buffer, most exportLimits) (
	last uuid.UUID, err error) {
	begun, n := time.Now(), 0
	w := csv.NewWriter(to)
	defer w.Flush()
	_ = w.Write(csvColumns) // a buffer cannot fail
	for {
		end, err := s.endOfPart(ctx, ws, after, most.part)
		if err != nil {
			return uuid.Nil, err
		}
		rows, _ := s.pool.Query(ctx, selectSuppressions+`
			and id > $2 and id <= $3 and address <> '' and ($4 = '' or channel = $4) and ($5 = '' or cause = $5) order by id`,
			ws, after, cmp.Or(end, uuid.Max), string(f.Channel), f.Cause)
		for rows.Next() {
			if n == most.rows || to.Len() > most.bytes {
				rows.Close()
				return after, nil
			}
			e, err := pgx.RowToStructByName[Suppression](rows)
			if err != nil {
				rows.Close()
				return uuid.Nil, err
			}
			after, n = e.ID, n+1
			_ = w.Write([]string{e.Address, string(e.Channel), e.Cause, e.Detail})
			w.Flush()
		}
		if err := rows.Err(); err != nil || end == uuid.Nil {
			return uuid.Nil, err
		}
		if after = end; time.Since(begun) >= most.time {
			return after, nil
		}
	}
}

// endOfPart returns the id of the last of some rows of the list after one; uuid.Nil if there
// are fewer.
func (s *Suppressions) endOfPart(ctx context.Context, ws, after uuid.UUID, rows int) (end uuid.UUID, err error) {
	err = s.pool.QueryRow(ctx, `select id from suppressions where workspace_id = $1 and id > $2 order by id offset $3 limit 1`,
		ws, after, rows-1).Scan(&end)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return end, err
}

package audience

import (
	"bytes"
	"context"
	"errors"
	"slices"

	"github.com/go-sql-driver/mysql"
	"github.com/google/uuid"

	"lemma"
	"lemma/address"
	"lemma/audience/sqltext"
	"lemma/audience/value"
	"lemma/pgerr"
)

// MaxKey is the longest profile key, in bytes.
const MaxKey = 255

// Row is a row of an audience: a profile. Strings are valid UTF-8 without NUL. They
// share memory with other rows, so clone one to keep it for long.
type Row struct {
	Key      string // the profile key; empty if it is null or invalid
	Email    string // as in the source, as the other addresses: neither checked nor canonical
	Phone    string
	Region   string // of phone numbers in national form
	Push     string // a token, or a JSON list of tokens
	OptedOut bool
	TooLarge bool   // it has more bytes than Options.MaxRowBytes: Payload is {}, and long addresses are missing
	Payload  string // the requested columns as a JSON object
}

func (r *Row) size() int {
	return len(r.Key) + len(r.Email) + len(r.Phone) + len(r.Push) + len(r.Payload)
}

func (r Row) sameAddresses(o Row) bool {
	return r.Email == o.Email && r.Phone == o.Phone && r.Push == o.Push && (r.Phone == "" || r.Region == o.Region)
}

// written is what the row has for a channel.
func (r Row) written(channel lemma.Channel) string {
	switch channel {
	case lemma.SMS:
		return r.Phone
	case lemma.Push:
		return r.Push
	}
	return r.Email
}

// clone returns the row with memory of its own.
func (r Row) clone() Row {
	text := r.Key + r.Email + r.Phone + r.Push + r.Payload
	for _, part := range []*string{&r.Key, &r.Email, &r.Phone, &r.Push, &r.Payload} {
		n := len(*part)
		*part, text = text[:n], text[n:]
	}
	return r
}

// Addresses appends the addresses of the row in a channel: see address.Append.
func (r *Row) Addresses(to []address.Address, channel lemma.Channel) []address.Address {
	switch channel {
	case lemma.SMS:
		return address.Append(to, channel, r.Phone, r.Region)
	case lemma.Push:
		return address.Append(to, channel, r.Push, "")
	}
	return address.Append(to, lemma.Email, r.Email, "")
}

// Stream reads the current audience and calls yield for each row of one snapshot, in
// the order of the query. columns are those of the payload; the audience must have
// them. Memory does not depend on the number of rows.
//
// With an opted-out column the query runs twice in the same snapshot: rows that are
// opted out come first, without a payload, then all others. So the caller receives every
// opt-out before the first row that may be sent to. Each run evaluates the column, which
// may depend on the time. A row that becomes opted out between the two comes among the
// others, as opted out. A row that is opted out in the first run only comes twice. Among
// more than Options.MaxDistinct opted-out rows, some come twice as opted out.
//
// Rows that are too large come as such, so that one of them does not end the stream.
//
// read is the number of rows of the audience, and 0 with an error. An error of yield
// ends the stream and is returned unchanged. Errors of the source are *lemma.Error with
// a code of this package.
func (a *Audiences) Stream(ctx context.Context, ws, id uuid.UUID, columns []string, yield func(Row) error) (read int64, err error) {
	x, source, err := a.forReading(ctx, ws, id)
	if err != nil {
		return 0, err
	}
	err = a.within(ctx, source, a.streamSpan(x), func(r *run) error {
		if err := r.checkUnchanged(x, columns); err != nil {
			return err
		}
		if x.OptedOutColumn == "" {
			read, err = a.streamRows(r, x, columns, selection{}, yield)
			return err
		}
		outs := newSeen(a.options.MaxDistinct)
		if _, err := a.streamRows(r, x, nil, selection{onlyOptedOut: true, outs: outs}, yield); err != nil {
			return err
		}
		read, err = a.streamRows(r, x, columns, selection{outs: outs}, yield)
		return err
	})
	return read, err
}

// selection determines which rows of the query a stream yields: all, or of two runs
// those that are opted out in the first, and in the second those that are not among
// them. Rows are selected here and not at the source: a source that searches for few
// rows sends nothing meanwhile, and a further condition could be evaluated before those
// of the query that prevent errors.
type selection struct {
	onlyOptedOut bool
	outs         *seen // key and addresses of opted-out rows of the first run
}

// streamRows runs the query once, and returns how many rows it has.
func (a *Audiences) streamRows(r *run, x Audience, columns []string, which selection, yield func(Row) error) (rows int64, err error) {
	s, names := a.newStream(r, x, columns)
	s.which, s.large = which, true
	r.wire().ShortenRows()
	if s.cursor, err = r.open(r.ctx, x.SQL, names, 0); err != nil {
		return 0, noLongerValid(err)
	}
	if err = s.each(yield); err != nil {
		return 0, err
	}
	return s.seen, nil
}

// forReading loads an audience and its source, and checks the text by the current
// rules.
func (a *Audiences) forReading(ctx context.Context, ws, id uuid.UUID) (Audience, openedSource, error) {
	x, err := a.Get(ctx, ws, id)
	if err != nil {
		return x, openedSource{}, err
	}
	source, err := a.opened(ctx, ws, x.DataSourceID)
	if err != nil {
		return x, source, err
	}
	return x, source, checkText(source.target.Kind, x.SQL)
}

// checkUnchanged describes the query again and compares its columns with the saved
// ones.
func (r *run) checkUnchanged(x Audience, columns []string) error {
	now, err := r.describe(r.ctx, x.SQL)
	if err != nil {
		return noLongerValid(err)
	}
	if err := x.stillHas(now); err != nil {
		return err
	}
	return x.sameTypes(now, columns)
}

// stillHas checks the columns that the audience needs, by the current rules.
func (x Audience) stillHas(now []Column) error {
	var e *lemma.Error
	if err := x.draft().checkColumns(now); errors.As(err, &e) && len(e.Fields) > 0 {
		return changed("the query no longer has the columns that the audience needs: %s", e.Fields[0].Detail)
	} else if err != nil {
		return err
	}
	return nil
}

// sameTypes compares current columns with the saved ones.
func (x Audience) sameTypes(now []Column, columns []string) error {
	for _, name := range slices.Concat([]string{x.KeyColumn, x.EmailColumn, x.PhoneColumn, x.PushColumn, x.OptedOutColumn}, columns) {
		saved, _ := columnNamed(x.Columns, name)
		live, ok := columnNamed(now, name)
		switch {
		case name == "":
		case !ok:
			return changed("the column %q is missing", sqltext.Printable(name))
		case live.Type != saved.Type:
			return changed("the column %q is %s and was %s", sqltext.Printable(name), live.Type, orMissing(saved.Type))
		}
	}
	return nil
}

func orMissing(t value.Type) string {
	if t == "" {
		return "missing"
	}
	return string(t)
}

// noLongerValid returns the error of a saved query that fails: the source has changed,
// or the query fails on some of its data.
func noLongerValid(err error) error {
	var e *lemma.Error
	if !errors.As(err, &e) || e.Code != CodeQuery {
		return err
	}
	c := changed("the query is no longer valid")
	if isDataException(e) {
		c.Code, c.Message = CodeFailed, "the query fails on the data of the source"
	}
	if len(e.Fields) > 0 {
		c.Message += ": " + e.Fields[0].Detail
	}
	c.Cause = err
	return c
}

// isDataException reports errors of class 22 of SQLSTATE, data exceptions (ISO 9075-2,
// 24.1): the query is valid, but fails on a row.
func isDataException(err error) bool {
	my, ok := errors.AsType[*mysql.MySQLError](err)
	return ok && string(my.SQLState[:2]) == "22" || pgerr.Is(err, "22")
}

// stream turns the values of a cursor into rows.
type stream struct {
	run     *run
	cursor  cursor
	options Options
	own     ownColumns
	region  string
	which   selection
	large   bool     // rows that are too large come as such, and are no error
	names   [][]byte // `{"name":`, `,"name":` for each column of the payload
	types   []value.Type
	values  [][]byte // of one row: key, the other columns that the audience has of its own, payload
	most    int      // bytes of slab, besides its last row
	slab    []byte   // the concatenated strings of the rows that wait for yield
	offsets []rowOffsets
	seen    int64 // rows of the source
	bytes   int64
}

// ownColumns are the positions of columns among the values; 0: the audience has none.
type ownColumns struct {
	email, phone, push, optOut int
	pushType                   value.Type
	payload                    int // the first of the payload
}

// newStream returns a stream, and the columns that it reads.
func (a *Audiences) newStream(r *run, x Audience, columns []string) (s *stream, read []string) {
	s = &stream{run: r, options: a.options, most: maxSlab, region: x.PhoneRegion}
	read = []string{x.KeyColumn}
	position := func(name string) int {
		if name == "" {
			return 0
		}
		read = append(read, name)
		return len(read) - 1
	}
	s.own = ownColumns{email: position(x.EmailColumn), phone: position(x.PhoneColumn), push: position(x.PushColumn),
		optOut: position(x.OptedOutColumn)}
	s.own.payload = len(read)
	push, _ := columnNamed(x.Columns, x.PushColumn)
	s.own.pushType = push.Type
	for i, name := range columns {
		c, _ := columnNamed(x.Columns, name)
		s.types = append(s.types, c.Type)
		lead := byte(',')
		if i == 0 {
			lead = '{'
		}
		s.names = append(s.names, append(value.AppendString([]byte{lead}, []byte(name)), ':'))
	}
	read = append(read, columns...)
	s.values = make([][]byte, len(read))
	return s, read
}

// each reads all rows and yields them.
func (s *stream) each(yield func(Row) error) error {
	for {
		s.run.startWaiting()
		more, err := s.fill()
		s.run.stopWaiting()
		if err != nil {
			return err
		}
		if err := s.yieldRows(yield); err != nil {
			return callerError{err}
		}
		if !more {
			return nil
		}
	}
}

// fill reads rows until it is time for a pause, or answers false at the end.
func (s *stream) fill() (bool, error) {
	s.slab, s.offsets = s.slab[:0], s.offsets[:0]
	for len(s.slab) < s.most {
		more, err := s.cursor.next(s.values)
		if err != nil || !more {
			return false, err
		}
		tooLarge, err := s.count()
		if err != nil {
			return false, err
		}
		if s.selects() {
			s.add(tooLarge)
		}
		if s.cursor.pause() {
			break
		}
	}
	return true, nil
}

// count checks the limits.
func (s *stream) count() (tooLarge bool, err error) {
	size := int64(0)
	for _, v := range s.values {
		size += int64(len(v))
	}
	s.seen++
	s.bytes += size
	tooLarge = size > s.options.MaxRowBytes || s.large && s.run.wire().Shortened(s.values)
	switch {
	case tooLarge && !s.large:
		return true, overLimit("row %d has more than %d bytes", s.seen, s.options.MaxRowBytes)
	case s.seen > s.options.MaxRows:
		return tooLarge, overLimit("the audience has more than %d rows", s.options.MaxRows)
	case s.bytes > s.options.MaxBytes:
		return tooLarge, overLimit("the result has more than %d bytes", s.options.MaxBytes)
	}
	return tooLarge, nil
}

// selects reports whether the stream yields the row.
func (s *stream) selects() bool {
	if s.which.outs == nil {
		return true
	}
	if !value.IsTrue(s.values[s.own.optOut]) {
		return !s.which.onlyOptedOut
	}
	known := s.which.outs.before(string(bytes.Join(s.values[:s.own.optOut], []byte{0})))
	return s.which.onlyOptedOut || !known
}

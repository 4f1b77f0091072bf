package wire

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"fmt"
)

// What the driver gets of a row that is too long: values that are not longer than keptValue, as long as
// they have keptRow bytes together, and those that are not longer than a mark.
const (
	keptValue = 64 << 10
	keptRow   = 128 << 10
)

// ShortenRows makes rows that are longer than the meter allows arrive without their long values, instead
// of ending the connection. It is called before a query.
func (m *Meter) ShortenRows() {
	if m.mark == nil {
		m.mark = []byte(rand.Text())
	}
}

// Shortened reports whether a row came without some of its values.
func (m *Meter) Shortened(row [][]byte) bool {
	if !m.shortened.Load() {
		return false
	}
	for _, v := range row {
		if bytes.Equal(v, m.mark) {
			return true
		}
	}
	return false
}

// ClearMarks makes the values that were left out of a row null.
func (m *Meter) ClearMarks(row [][]byte) {
	for i, v := range row {
		if m.mark != nil && bytes.Equal(v, m.mark) {
			row[i] = nil
		}
	}
}

// shortRow is what the driver gets of a row that is too long. It has a mark, which the source does not
// know, in place of the values that are left out.
type shortRow struct {
	bytes []byte
	mark  []byte
	part  []byte // what has arrived of the next field, if that is not all
	left  int    // bytes of the current value that are missing
	keeps bool   // the current value
	kept  int    // bytes of values
	out   int    // bytes of values that are left out
	wrong bool   // it has more than its columns
}

// LeftOut is how many bytes of rows were left out since the last call.
func (m *Meter) LeftOut() int {
	n := m.leftOut
	m.leftOut = 0
	return n
}

// shortRow begins such a row.
func (m *Meter) shortRow() shortRow {
	m.shortened.Store(true)
	return shortRow{mark: m.mark}
}

// fill completes the next field of n bytes, and returns what follows it.
func (r *shortRow) fill(p []byte, n int) (rest []byte, whole bool) {
	missing := min(n-len(r.part), len(p))
	r.part = append(r.part, p[:missing]...)
	return p[missing:], len(r.part) == n
}

// begin begins a value of n bytes, and reports whether it is kept.
func (r *shortRow) begin(n int) bool {
	r.left = n
	if r.keeps = n <= len(r.mark) || n <= keptValue && r.kept+n <= keptRow; r.keeps {
		r.kept += n
	} else {
		r.out += n
	}
	return r.keeps
}

// value reads more of the current value, and returns what follows it.
func (r *shortRow) value(p []byte) []byte {
	n := min(r.left, len(p))
	if r.keeps {
		r.bytes = append(r.bytes, p[:n]...)
	}
	r.left -= n
	return p[n:]
}

// postgresRow shortens the body of a DataRow (section 55.7 of the manual): the number of columns, and for
// each its length, -1 for null, and its value.
type postgresRow struct {
	shortRow
	counted bool
	missing int // columns
}

func (r *postgresRow) add(p []byte) {
	for len(p) > 0 {
		switch {
		case r.left > 0:
			p = r.value(p)
		case !r.counted:
			p = r.count(p)
		case r.missing == 0:
			r.wrong = true
			return
		default:
			p = r.length(p)
		}
	}
}

func (r *postgresRow) count(p []byte) []byte {
	rest, whole := r.fill(p, 2)
	if whole {
		r.bytes = append(r.bytes, r.part...)
		r.counted, r.missing, r.part = true, int(binary.BigEndian.Uint16(r.part)), r.part[:0]
	}
	return rest
}

// length begins the value of a column.
func (r *postgresRow) length(p []byte) []byte {
	rest, whole := r.fill(p, 4)
	if !whole {
		return rest
	}
	length := r.part
	if n := binary.BigEndian.Uint32(length); int32(n) > 0 && !r.begin(int(n)) {
		length = append(binary.BigEndian.AppendUint32(nil, uint32(len(r.mark))), r.mark...)
	}
	r.bytes = append(r.bytes, length...)
	r.missing--
	r.part = r.part[:0]
	return rest
}

// message is the shortened row.
func (r *postgresRow) message() ([]byte, error) {
	if r.wrong || r.left > 0 || r.missing > 0 || !r.counted {
		return nil, fmt.Errorf("%w: a long row with false lengths", ErrMalformed)
	}
	return append(binary.BigEndian.AppendUint32([]byte{'D'}, uint32(4+len(r.bytes))), r.bytes...), nil
}

// mysqlRow shortens a row of a prepared statement (Protocol::BinaryResultsetRow): a zero, the bits of
// nulls, and the values of the other columns, whose form depends on their types.
type mysqlRow struct {
	shortRow
	types  []byte // enum_field_types
	nulls  []byte // nil: they are missing
	column int    // the next one
}

func (r *mysqlRow) add(p []byte) {
	for len(p) > 0 {
		switch {
		case r.left > 0:
			p = r.value(p)
		case r.nulls == nil:
			p = r.head(p)
		case r.column == len(r.types):
			r.wrong = true
			return
		default:
			p = r.length(p)
		}
	}
}

// head reads the bits of nulls.
func (r *mysqlRow) head(p []byte) []byte {
	rest, whole := r.fill(p, 1+(len(r.types)+7+2)/8)
	if whole {
		r.bytes = append(r.bytes, r.part...)
		r.nulls, r.part = bytes.Clone(r.part[1:]), r.part[:0]
		r.skipNulls()
	}
	return rest
}

// skipNulls goes to the next column that has a value.
func (r *mysqlRow) skipNulls() {
	for ; r.column < len(r.types); r.column++ {
		if bit := r.column + 2; r.nulls[bit/8]&(1<<(bit%8)) == 0 {
			return
		}
	}
}

// length begins the value of a column.
func (r *mysqlRow) length(p []byte) []byte {
	if size, fixed := sizeOf(r.types[r.column]); fixed {
		r.left, r.keeps = size, true
		r.column++
		r.skipNulls()
		return p
	}
	size := 1
	if len(r.part) > 0 {
		size = sizeOfLength(r.part[0])
	}
	p, whole := r.fill(p, size)
	if !whole || size < sizeOfLength(r.part[0]) {
		return p
	}
	length, _, _ := lengthEncoded(r.part)
	if r.begin(int(min(length, 1<<40))) {
		r.bytes = append(r.bytes, r.part...)
	} else {
		r.bytes = append(append(r.bytes, byte(len(r.mark))), r.mark...)
	}
	r.part = r.part[:0]
	r.column++
	r.skipNulls()
	return p
}

// sizeOfLength is the size of a length-encoded integer with its first byte.
func sizeOfLength(first byte) int {
	switch first {
	case 0xfc:
		return 3
	case 0xfd:
		return 4
	case 0xfe:
		return 9
	}
	return 1
}

// sizeOf is the size of the values of a type, if they all have the same.
func sizeOf(kind byte) (size int, fixed bool) {
	switch kind {
	case 1: // TINY
		return 1, true
	case 2, 13: // SHORT, YEAR
		return 2, true
	case 3, 4, 9: // LONG, FLOAT, INT24
		return 4, true
	case 5, 8: // DOUBLE, LONGLONG
		return 8, true
	case 6: // NULL
		return 0, true
	}
	return 0, false
}

// packet is the shortened row with the header of a packet. Its sequence number is 0.
func (r *mysqlRow) packet() ([]byte, error) {
	if r.wrong || r.left > 0 || r.nulls == nil || r.column < len(r.types) {
		return nil, fmt.Errorf("%w: a long row with false lengths", ErrMalformed)
	}
	n := len(r.bytes)
	return append([]byte{byte(n), byte(n >> 8), byte(n >> 16), 0}, r.bytes...), nil
}

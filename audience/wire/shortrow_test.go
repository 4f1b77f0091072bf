package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// pgRow is the body of a DataRow. A nil value is null.
func pgRow(values ...[]byte) []byte {
	row := binary.BigEndian.AppendUint16(nil, uint16(len(values)))
	for _, v := range values {
		if v == nil {
			row = binary.BigEndian.AppendUint32(row, 1<<32-1)
			continue
		}
		row = append(binary.BigEndian.AppendUint32(row, uint32(len(v))), v...)
	}
	return row
}

// A row of Postgres that is too long comes without its long values, however it arrives; what is before and
// after it is unchanged.
func TestLongRowsOfPostgres(t *testing.T) {
	t.Parallel()
	long := bytes.Repeat([]byte("x"), 3<<20)
	before := slices.Concat(message('T', []byte{0, 4}), message('D', pgRow([]byte("1"), nil, []byte{}, []byte("short"))))
	after := slices.Concat(message('D', pgRow([]byte("3"), nil, []byte{}, []byte("s"))), message('C', []byte("FETCH 3\x00")))
	stream := slices.Concat(before, message('D', pgRow([]byte("2"), nil, long, bytes.Repeat([]byte("y"), 50_000))), after)
	for name, pieces := range map[string]func(io.Reader) io.Reader{
		"all": func(r io.Reader) io.Reader { return r }, "bytes": iotest.OneByteReader, "halves": iotest.HalfReader,
	} {
		m := NewMeter(nil, 1<<20, 1<<40)
		m.ShortenRows()
		got, err := io.ReadAll(NewPostgres(pieces(bytes.NewReader(stream)), m))
		want := slices.Concat(before, message('D', pgRow([]byte("2"), nil, m.mark, bytes.Repeat([]byte("y"), 50_000))), after)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, %v, want %d", name, len(got), err, len(want))
		}
		if !m.Shortened([][]byte{[]byte("2"), m.mark}) || m.Shortened([][]byte{[]byte("2"), nil}) {
			t.Errorf("%s: a shortened row is not recognized", name)
		}
	}
}

// Without ShortenRows a long row ends the connection, and so does one whose lengths are false.
func TestLongRowsThatAreRefused(t *testing.T) {
	t.Parallel()
	long := message('D', pgRow(bytes.Repeat([]byte("x"), 3<<20)))
	wrong := slices.Clone(long)
	binary.BigEndian.PutUint32(wrong[7:], 4<<20)
	nulls := message('D', append(pgRow([]byte("x")), bytes.Repeat([]byte{0xff}, 3<<20)...)) // more values than columns
	for _, c := range []struct {
		shorten bool
		row     []byte
		want    error
	}{{false, long, ErrRowTooBig}, {true, long, nil}, {true, wrong, ErrMalformed}, {true, nulls, ErrMalformed}} {
		ours, theirs := net.Pipe()
		m := NewMeter(ours, 1<<20, 1<<40)
		if c.shorten {
			m.ShortenRows()
		}
		f := NewPostgres(bytes.NewReader(slices.Concat(message('T', []byte{0, 1}), c.row)), m)
		if _, err := io.ReadAll(f); !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("%v, want %v", err, c.want)
		}
		theirs.Close()
	}
}

// mysqlPackets splits a body into packets, from a sequence number on.
func mysqlPackets(number byte, body []byte) (packets []byte, next byte) {
	for {
		n := min(len(body), mostInPacket)
		packets = append(append(packets, byte(n), byte(n>>8), byte(n>>16), number), body[:n]...)
		number, body = number+1, body[n:]
		if n < mostInPacket {
			return packets, number
		}
	}
}

func lenenc(v []byte) []byte {
	switch n := len(v); {
	case n < 251:
		return append([]byte{byte(n)}, v...)
	case n < 1<<16:
		return append([]byte{0xfc, byte(n), byte(n >> 8)}, v...)
	case n < 1<<24:
		return append([]byte{0xfd, byte(n), byte(n >> 8), byte(n >> 16)}, v...)
	}
	return append(binary.LittleEndian.AppendUint64([]byte{0xfe}, uint64(len(v))), v...)
}

// A row of a prepared statement of MySQL that is too long comes without its long values. It may have
// several packets, of which the driver gets one.
func TestLongRowsOfMySQL(t *testing.T) {
	t.Parallel()
	types := []byte{8, 253, 252, 3, 12, 252, 252} // a number, texts, a number, a time, texts
	row := func(values ...[]byte) []byte {
		body := []byte{0, 0, 0} // two bytes for the nulls of seven columns
		for i, v := range values {
			switch {
			case v == nil:
				body[1+(i+2)/8] |= 1 << ((i + 2) % 8)
			case types[i] == 8 || types[i] == 3:
				body = append(body, v...)
			default:
				body = append(body, lenenc(v)...)
			}
		}
		return body
	}
	id, number, time := []byte("12345678"), []byte("1234"), []byte("1234567")
	for name, sizes := range map[string][2]int{
		"one packet": {3 << 20, 60_000}, "three packets": {33 << 20, 200}, "exactly one": {mostInPacket, 0},
	} {
		long, short := bytes.Repeat([]byte("x"), sizes[0]), bytes.Repeat([]byte("y"), sizes[1])
		if name == "exactly one" { // so that an empty packet follows
			long = long[:mostInPacket-len(row(id, []byte("key"), nil, number, time, []byte{}, short))-3]
		}
		definition := slices.Concat([]byte{3}, []byte("def"), []byte{0, 0, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0})
		var before, after []byte
		sequence := byte(1)
		add := func(to *[]byte, body []byte) {
			packets, next := mysqlPackets(sequence, body)
			*to, sequence = append(*to, packets...), next
		}
		add(&before, []byte{byte(len(types))})
		for _, kind := range types {
			add(&before, append(slices.Clone(definition), kind, 0, 0, 0, 0, 0))
		}
		add(&before, []byte{0xfe, 0, 0, 0, 0})
		add(&before, row(id, []byte("first"), nil, number, time, nil, []byte("z")))
		begins := sequence
		var rows []byte
		add(&rows, row(id, []byte("key"), nil, number, time, long, short))
		ends := sequence
		sequence = begins
		m := NewMeter(nil, 1<<20, 1<<40)
		m.ShortenRows()
		var shortened []byte
		add(&shortened, row(id, []byte("key"), nil, number, time, m.mark, short))
		want := slices.Concat(before, shortened)
		add(&want, row(id, []byte("last"), nil, number, time, nil, nil))
		sequence = ends
		add(&after, row(id, []byte("last"), nil, number, time, nil, nil))
		for _, pieces := range []func(io.Reader) io.Reader{iotest.HalfReader, func(r io.Reader) io.Reader { return r }} {
			w := &MySQL{Conn: readConn{r: pieces(bytes.NewReader(slices.Concat(before, rows, after)))}, Meter: m, first: true}
			w.result.command(comExecute)
			got, err := io.ReadAll(w)
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: %d bytes, %v, want %d", name, len(got), err, len(want))
			}
			if w.result.rows != 3 {
				t.Errorf("%s: %d rows", name, w.result.rows)
			}
		}
	}
}

// readConn is a connection that is only read.
type readConn struct {
	net.Conn
	r io.Reader
}

func (c readConn) Read(p []byte) (int, error) { return c.r.Read(p) }

// Values of a long row are kept up to a size of all together.
func TestLongRowsOfManyValues(t *testing.T) {
	t.Parallel()
	values := make([][]byte, 100)
	for i := range values {
		values[i] = []byte(strings.Repeat("v", keptRow/4))
	}
	values[99] = []byte("t") // such as whether the profile has opted out
	m := NewMeter(nil, 1<<20, 1<<40)
	m.ShortenRows()
	got, err := io.ReadAll(NewPostgres(bytes.NewReader(slices.Concat(message('T', []byte{0, 100}), message('D', pgRow(values...)))), m))
	if err != nil || !bytes.HasSuffix(got, []byte{0, 0, 0, 1, 't'}) || len(got) > keptRow+100*(4+len(m.mark))+50 || len(got) < keptRow-30_000 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

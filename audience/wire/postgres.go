package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"strconv"
)

// maxStatuses bounds the memory of the settings that a Postgres server reports:
// names, values and statusMemory for each. A server reports about twenty.
const (
	maxStatuses  = 64 << 10
	statusMemory = 128 // two entries in maps
)

// Postgres checks what a Postgres server sends, inside TLS, before the driver reads
// it. It refuses a login that would take long to compute, a description of more than
// maxResultColumn columns, and rows that do not have the columns of the last
// description: a null has 4 bytes on the wire, and the driver makes 24 of them.
//
// The driver keeps each ParameterStatus by its name while the connection is open,
// and a server may send one at any time, even between rows. The filter counts their
// size, and ends the connection above maxStatuses.
type Postgres struct {
	reader io.Reader
	meter  *Meter
	passed passed

	header   [5]byte      // kind, length with itself (section 55.1 of the manual)
	have     int          // bytes of header
	left     int          // bytes of the body that are missing
	body     []byte       // the part of it that is checked, if it arrives in pieces
	wanted   int          // length of that part, 0 once it is checked
	columns  int          // of the last description
	short    *postgresRow // the current message, if it is shortened
	statuses map[string]int
	sum      int
}

// NewPostgres returns the reader of what r reads, below the driver. Its faults end the
// connection of m. It counts the bytes of rows, since r reads ahead while the driver writes.
func NewPostgres(r io.Reader, m *Meter) *Postgres {
	m.ahead = newAhead()
	return &Postgres{reader: r, meter: m, statuses: map[string]int{}}
}

func (f *Postgres) Read(p []byte) (int, error) {
	return f.passed.read(p, f.reader, f.scan, f.meter)
}

// scan splits the bytes into messages, checks the part of each that begin wants, and passes them on.
func (f *Postgres) scan(p []byte) error {
	for len(p) > 0 {
		if f.left == 0 {
			n := copy(f.header[f.have:], p)
			p = p[n:]
			if f.have += n; f.have < len(f.header) {
				return nil
			}
			if err := f.begin(); err != nil {
				return err
			}
		}
		n := min(f.left, len(p))
		if f.wanted > 0 {
			if err := f.collect(p[:n]); err != nil {
				return err
			}
		}
		f.left -= n
		if err := f.pass(p[:n]); err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// pass passes on a part of a body, or at the end of a row that is shortened what is left of it.
func (f *Postgres) pass(p []byte) error {
	if f.short == nil {
		f.passed.add(p)
		return nil
	}
	f.short.add(p)
	if f.left > 0 {
		return nil
	}
	row, err := f.short.message()
	f.passed.add(row)
	f.meter.leftOut += f.short.out
	f.short = nil
	return err
}

func (f *Postgres) begin() error {
	f.have = 0
	length := int64(binary.BigEndian.Uint32(f.header[1:]))
	if length < 4 {
		return fmt.Errorf("%w: a message of %d bytes", ErrMalformed, length)
	}
	f.left, f.body = int(length)-4, f.body[:0]
	switch {
	case length <= f.meter.limit:
		f.passed.add(f.header[:])
	case f.header[0] != 'D':
		return fmt.Errorf("%w: a message %q of %d bytes", ErrMalformed, f.header[0], length) // such as the greeting of a mail server
	case f.meter.mark == nil:
		return ErrRowTooBig
	default:
		f.short = &postgresRow{shortRow: f.meter.shortRow()}
	}
	return f.want()
}

// want decides by the kind of the message how much of it is checked, and bounds those
// that the driver keeps in a larger form.
func (f *Postgres) want() error {
	f.wanted = 0
	switch f.header[0] {
	case 'D', 'T': // the number of columns
		if f.wanted = 2; f.left < f.wanted {
			return fmt.Errorf("%w: a message %q without its number of columns", ErrMalformed, f.header[0])
		}
	case 'S':
		if f.wanted = f.left; f.left > maxStatuses {
			return fmt.Errorf("%w: a setting of %d bytes", ErrMalformed, f.left)
		}
	case 'R':
		f.wanted = f.left
		fallthrough
	case 'K', 'v': // the key that cancels, the versions of the protocol
		if f.left > maxLoginPacket {
			return fmt.Errorf("%w: a message %q of %d bytes", ErrMalformed, f.header[0], f.left)
		}
	}
	return nil
}

// collect checks the wanted part of a body once it is whole, and copies it only if it
// arrives in pieces.
func (f *Postgres) collect(p []byte) error {
	p = p[:min(len(p), f.wanted-len(f.body))]
	if len(f.body) > 0 || len(p) < f.wanted {
		f.body = append(f.body, p...)
		p = f.body
	}
	if len(p) < f.wanted {
		return nil
	}
	f.wanted = 0
	return f.check(p)
}

func (f *Postgres) check(body []byte) error {
	switch f.header[0] {
	case 'R':
		return authentication(body)
	case 'S':
		return f.status(body)
	case 'T':
		return f.description(body)
	}
	return f.row(body)
}

func (f *Postgres) description(body []byte) error {
	if f.columns = int(binary.BigEndian.Uint16(body)); f.columns > maxResultColumn {
		return fmt.Errorf("%w: a result of %d columns", ErrMalformed, f.columns)
	}
	return nil
}

func (f *Postgres) row(body []byte) error {
	if n := int(binary.BigEndian.Uint16(body)); n != f.columns {
		return fmt.Errorf("%w: a row of %d columns instead of %d", ErrMalformed, n, f.columns)
	}
	return nil
}

// maxIterations bounds how often a login hashes the password. The default of servers
// is 4096 (scram_iterations). These take some 15 ms of a processor; the driver accepts 10,000,000,
// which cannot be interrupted.
const maxIterations = 100_000

// authentication refuses too many iterations (RFC 5802, 5.1) in
// AuthenticationSASLContinue.
func authentication(body []byte) error {
	const saslContinue = 11
	if len(body) < 4 || binary.BigEndian.Uint32(body) != saslContinue {
		return nil
	}
	for attribute := range bytes.SplitSeq(body[4:], []byte{','}) {
		text, is := bytes.CutPrefix(attribute, []byte("i="))
		if n, err := strconv.Atoi(string(text)); is && err == nil && n > maxIterations {
			return Refusal(fmt.Sprintf(
				"the source demands %d iterations of SCRAM for a login, and at most %d are allowed", n, maxIterations))
		}
	}
	return nil
}

func (f *Postgres) status(body []byte) error {
	name, _, _ := bytes.Cut(body, []byte{0})
	size := len(body) + statusMemory
	f.sum += size - f.statuses[string(name)]
	f.statuses[string(name)] = size
	if f.sum > maxStatuses {
		return fmt.Errorf("%w: it reports more than %d bytes of settings", ErrMalformed, maxStatuses)
	}
	return nil
}

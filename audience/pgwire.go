package audience

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"strconv"
)

// maxStatuses bounds the settings that a Postgres server reports, in bytes of names
// and values. A server reports about twenty.
const maxStatuses = 64 << 10

// pgFilter checks what a Postgres server sends, inside TLS, before the driver reads
// it. It refuses a login that would take long to compute.
//
// The driver keeps each ParameterStatus by its name while the connection is open,
// and a server may send one at any time, even between rows. The filter counts their
// size, and ends the connection above maxStatuses.
type pgFilter struct {
	reader io.Reader
	meter  *meter

	header   [5]byte // kind, length with itself (section 55.1 of the manual)
	have     int     // bytes of header
	left     int     // bytes of the body that are missing
	body     []byte  // of a ParameterStatus or an authentication request, so far
	statuses map[string]int
	sum      int
}

func newPgFilter(r io.Reader, m *meter) *pgFilter {
	return &pgFilter{reader: r, meter: m, statuses: map[string]int{}}
}

func (f *pgFilter) Read(p []byte) (int, error) {
	n, err := f.reader.Read(p)
	if fault := f.scan(p[:n]); fault != nil {
		return 0, f.meter.fail(fault)
	}
	return n, err
}

// scan splits the bytes into messages, and checks those that needsBody reports.
func (f *pgFilter) scan(p []byte) error {
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
		if f.needsBody() {
			f.body = append(f.body, p[:n]...)
		}
		p = p[n:]
		if f.left -= n; f.left == 0 && f.needsBody() {
			if err := f.check(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *pgFilter) begin() error {
	f.have = 0
	length := int64(binary.BigEndian.Uint32(f.header[1:]))
	if length < 4 {
		return fmt.Errorf("%w: a message of %d bytes", errMalformed, length)
	}
	if length > f.meter.limit {
		if f.header[0] == 'D' {
			return errRowTooBig
		}
		return fmt.Errorf("%w: a message %q of %d bytes", errMalformed, f.header[0], length) // such as the greeting of a mail server
	}
	f.left, f.body = int(length)-4, f.body[:0]
	if f.needsBody() && f.left > maxStatuses {
		return fmt.Errorf("%w: a setting or a login of %d bytes", errMalformed, f.left)
	}
	return nil
}

// needsBody reports whether the body of the message is needed.
func (f *pgFilter) needsBody() bool { return f.header[0] == 'S' || f.header[0] == 'R' }

func (f *pgFilter) check() error {
	if f.header[0] == 'R' {
		return f.authentication()
	}
	return f.status()
}

// maxIterations bounds how often a login hashes the password. The default of servers
// is 4096 (scram_iterations). The driver accepts 10,000,000, which take 5 s of a
// processor and cannot be interrupted.
const maxIterations = 1_000_000

// authentication refuses too many iterations (RFC 5802, 5.1) in
// AuthenticationSASLContinue.
func (f *pgFilter) authentication() error {
	const saslContinue = 11
	if len(f.body) < 4 || binary.BigEndian.Uint32(f.body) != saslContinue {
		return nil
	}
	for attribute := range bytes.SplitSeq(f.body[4:], []byte{','}) {
		text, is := bytes.CutPrefix(attribute, []byte("i="))
		if n, err := strconv.Atoi(string(text)); is && err == nil && n > maxIterations {
			return refused(nil, "the source demands %d iterations of SCRAM for a login, and at most %d are allowed", n, maxIterations)
		}
	}
	return nil
}

func (f *pgFilter) status() error {
	name, _, _ := bytes.Cut(f.body, []byte{0})
	f.sum += len(f.body) - f.statuses[string(name)]
	f.statuses[string(name)] = len(f.body)
	if f.sum > maxStatuses {
		return fmt.Errorf("%w: it reports more than %d bytes of settings", errMalformed, maxStatuses)
	}
	return nil
}

package wire

import (
	"crypto/tls"
	"fmt"
	"net"
	"slices"
)

// Bounds on what a MySQL server may send.
const (
	maxLoginPacket  = 16 << 10 // before the login is done: a greeting, an RSA key, an error
	maxResultColumn = 4096     // columns of a result, of Postgres too: no server has tables or results with more
)

// MySQL is the connection that the driver reads, inside TLS. It checks packets
// that the driver does not check: the driver allocates as many columns as a server
// announces, up to 2^63, and slices packets without checking their length, where a
// panic would leave a goroutine behind. So TLS begins here and not in the driver,
// and every packet is framed before the driver reads it.
//
// It also keeps the columns of a prepared statement, which the driver skips: they
// describe a query without running it.
type MySQL struct {
	net.Conn // plain, or TLS over the meter
	Meter    *Meter
	tls      *tls.Config // to begin TLS with, once the driver answers the greeting

	pending []byte // the greeting, which is read before the driver starts
	shift   byte   // 1 during a login over TLS, since the request for TLS has its own number
	login   bool   // until the driver's first command
	socket  bool   // a unix socket
	frame   mysqlFrame
	passed  passed
	short   *mysqlRow // the current row, if it is shortened
	behind  byte      // packets of the response that the driver does not get
	first   bool      // the next packet begins a response
	prepare *mysqlPrepare
	result  mysqlResult
}

// mysqlFrame is the position in the stream of packets.
type mysqlFrame struct {
	header [4]byte // length of the body, sequence number
	have   int     // bytes of header
	left   int     // bytes of the body that are missing
	full   bool    // the next packet has more of the same
	body   []byte  // the part of it that is checked
	wanted int     // length of that part
}

// Encrypted reports whether the connection has TLS, or begins it during the login.
func (w *MySQL) Encrypted() bool { return w.tls != nil || w.Conn != net.Conn(w.Meter) }

// Columns returns the columns of the statement that prepare makes the driver prepare.
func (w *MySQL) Columns(prepare func() error) ([]Column, error) {
	answer := &mysqlPrepare{}
	w.prepare = answer
	defer func() { w.prepare = nil }()
	err := prepare()
	w.result.prepared = typesOf(answer.columns)
	return answer.columns, err
}

// Complete reports whether the server ended the last result after so many rows.
func (w *MySQL) Complete(rows int) bool { return w.result.complete(rows) }

// StartMySQL reads the greeting and returns the connection for the login of the
// driver. TLS begins with the driver's first packet.
func StartMySQL(m *Meter, t Target) (*MySQL, error) {
	greeting, err := readGreeting(m)
	if err != nil {
		return nil, err
	}
	capabilities, err := checkGreeting(greeting[4:])
	if err != nil {
		return nil, err
	}
	w := &MySQL{Conn: m, Meter: m, pending: greeting, login: true, socket: t.Socket != "", first: true}
	switch config := t.TLSConfig(); {
	case config == nil:
	case capabilities&clientSSL != 0:
		w.tls = config
	case t.TLS != "prefer":
		return nil, Refusal("the source does not encrypt connections, and its DSN demands it")
	}
	return w, nil
}

// Capabilities of the protocol that matter here (MySQL's CLIENT_*).
const (
	clientProtocol41 = 1 << 9
	clientSSL        = 1 << 11
)

// encrypt begins TLS before the driver's response to the greeting is sent. The
// request for TLS is the fixed part of that response (Protocol::SSLRequest), so both
// have the same capabilities.
func (w *MySQL) encrypt(answer []byte) error {
	if len(answer) < 4+32 {
		return fmt.Errorf("begin TLS: a login of %d bytes", len(answer))
	}
	answer[5] |= clientSSL >> 8
	request := slices.Clone(answer[:4+32])
	copy(request, []byte{32, 0, 0, 1})
	if _, err := w.Meter.Write(request); err != nil {
		return err
	}
	secure := tls.Client(w.Meter, w.tls)
	if err := secure.Handshake(); err != nil { //nolint:noctx // the end of the run closes the connection
		return err
	}
	w.Conn, w.shift, w.tls = secure, 1, nil
	return nil
}

// Read returns checked packets to the driver. Until its first command, their numbers
// are those that the driver expects.
func (w *MySQL) Read(p []byte) (int, error) {
	if len(w.pending) > 0 {
		n := copy(p, w.pending)
		w.pending = w.pending[n:]
		return n, nil
	}
	return w.passed.read(p, w.Conn, w.scan, w.Meter)
}

// Write records the command of the driver, since it determines how the response
// begins. The driver writes whole packets.
func (w *MySQL) Write(p []byte) (int, error) {
	if len(p) < 5 {
		return w.Conn.Write(p)
	}
	if p[3] == 0 { // a command: its number begins at 0
		w.login, w.shift, w.first, w.behind = false, 0, true, 0
		w.result.command(p[4])
		if w.prepare != nil && p[4] == comPrepare {
			w.prepare.begun = true
		}
		return w.Conn.Write(p)
	}
	if w.login && p[3] == 1 {
		w.result.login(p)
	}
	if w.tls != nil {
		p = slices.Clone(p)
		if err := w.encrypt(p); err != nil {
			return 0, w.Meter.Fail(err)
		}
	}
	if w.shift != 0 {
		p = slices.Clone(p)
		p[3] += w.shift
	}
	return w.Conn.Write(p)
}

// scan splits the bytes into packets and checks each.
func (w *MySQL) scan(p []byte) error {
	f := &w.frame
	for len(p) > 0 {
		if f.left == 0 {
			n := copy(f.header[f.have:], p)
			p = p[n:]
			if f.have += n; f.have < len(f.header) {
				return nil
			}
			if err := w.begin(); err != nil {
				return err
			}
		}
		n := min(f.left, len(p))
		if missing := f.wanted - len(f.body); missing > 0 {
			f.body = append(f.body, p[:min(n, missing)]...)
			if len(f.body) == f.wanted {
				if err := w.check(); err != nil {
					return err
				}
			}
		}
		f.left -= n
		if err := w.pass(p[:n]); err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// pass passes on a part of a packet, or at the end of a row that is shortened what is left of it.
func (w *MySQL) pass(p []byte) error {
	if w.short == nil {
		w.passed.add(p)
		return nil
	}
	w.short.add(p)
	if w.frame.left > 0 {
		return nil
	}
	if w.frame.full { // the row goes on in the next packet
		w.behind++
		return nil
	}
	row, err := w.short.packet()
	if err != nil {
		return err
	}
	row[3] = w.frame.header[3] - w.behind
	w.passed.add(row)
	w.short = nil
	return nil
}

// begin decides by the header what happens to the packet.
func (w *MySQL) begin() error {
	f := &w.frame
	f.have, f.body = 0, f.body[:0]
	f.left = int(f.header[0]) | int(f.header[1])<<8 | int(f.header[2])<<16
	f.full = f.left == mostInPacket
	switch {
	case w.short != nil: // the row goes on
		f.wanted = 0
		return nil
	case f.left == 0:
		return fmt.Errorf("%w: an empty packet", ErrMalformed)
	case w.login && f.left > maxLoginPacket:
		return errLoginTooLong
	case int64(f.left) > w.Meter.limit:
		if w.Meter.mark == nil || !w.result.inRows() {
			return ErrRowTooBig
		}
		w.short = &mysqlRow{shortRow: w.Meter.shortRow(), types: w.result.types}
	}
	f.wanted = w.wanted()
	if w.short == nil {
		header := f.header
		header[3] -= w.shift + w.behind
		w.passed.add(header[:])
	}
	return nil
}

// wanted is how much of the packet is checked: all of it during a login and while columns are
// collected, of the first packet of a response the ten bytes that can be the number of columns of a
// result and whether their definitions follow, and of others the first byte.
func (w *MySQL) wanted() int {
	switch {
	case w.login, w.prepare.collecting(), w.result.collecting():
		return w.frame.left
	case w.prepare.collected():
		return 0
	case w.first:
		return min(w.frame.left, 10)
	}
	return 1
}

// mostInPacket is how much a packet has of something that goes on in the next one.
const mostInPacket = 1<<24 - 1

func (w *MySQL) check() error {
	body := w.frame.body
	switch {
	case w.login:
		return w.checkLogin(body)
	case w.prepare.collecting():
		return w.prepare.take(body)
	case w.first:
		return w.checkHead(body)
	}
	return w.result.packet(body)
}

// checkHead checks the first packet of a response. Another may follow one that
// reports success; columns and rows follow a number of columns.
func (w *MySQL) checkHead(body []byte) error {
	switch body[0] {
	case 0x00, 0xff, 0xfb: // success, an error, a request for a file
		return nil
	}
	columns, size, ok := lengthEncoded(body)
	if !ok || columns == 0 || columns > maxResultColumn {
		return fmt.Errorf("%w: a result of %d columns", ErrMalformed, columns)
	}
	w.first = false
	w.result.begin(int(columns), body[size:])
	return nil
}

// lengthEncoded reads a length-encoded integer, and its size in bytes.
func lengthEncoded(b []byte) (value uint64, size int, ok bool) {
	if len(b) == 0 {
		return 0, 0, false
	}
	switch b[0] {
	case 0xfc:
		size = 3
	case 0xfd:
		size = 4
	case 0xfe:
		size = 9
	case 0xfb, 0xff:
		return 0, 1, false
	default:
		return uint64(b[0]), 1, true
	}
	if len(b) < size {
		return 0, 0, false
	}
	for i := size - 1; i > 0; i-- {
		value = value<<8 | uint64(b[i])
	}
	return value, size, true
}

// Close closes the connection without the closing message of TLS, which could block.
func (w *MySQL) Close() error { return w.Meter.Close() }

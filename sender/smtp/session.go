package smtp

import (
	"errors"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"lemma/sender/trace"
)

// session is a connection to a server, after EHLO.
type session struct {
	replies
	conn    net.Conn
	timeout time.Duration // for one round trip
	used    bool          // an envelope has been sent over it

	pipelining bool
	sized      bool // the server offers SIZE
	limit      int  // the largest message that it accepts, in bytes; 0: not announced

	owesDot   bool // the server waits for the content of a message without recipients
	owesReset bool // a transaction is open that must be reset

	trace  *trace.Trace
	hidden bool // of replies only the numbers are recorded

	clock    sync.Mutex // guards over, so that an interrupt is not undone by a new deadline
	over     bool
	envelope []byte
}

// arm sets the deadline of the next round trip, on the monotonic clock, which a step
// of the wall clock does not change.
func (s *session) arm() {
	s.clock.Lock()
	defer s.clock.Unlock()
	if !s.over {
		_ = s.conn.SetDeadline(time.Now().Add(s.timeout)) // fails on a closed connection only, as the next call will
	}
}

// interrupt ends the current round trip and all later ones.
func (s *session) interrupt() {
	s.clock.Lock()
	defer s.clock.Unlock()
	s.over = true
	_ = s.conn.SetDeadline(time.Unix(1, 0)) // long past
}

// lastRead is how long an answer is read after the deadline: enough for bytes that
// have arrived.
const lastRead = time.Millisecond

// answer reads one reply. At the deadline it reads once more, since an answer that has
// arrived is better than an unknown outcome.
func (s *session) answer() (reply, error) {
	a, err := s.next()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		_ = s.conn.SetReadDeadline(time.Now().Add(lastRead))
		a, err = s.next()
	}
	s.recordReply(a, err)
	return a, err
}

// command sends one line and reads its answer.
func (s *session) command(line string) (reply, error) {
	s.trace.Sent(trace.PartLine, line)
	return s.roundTrip(line)
}

// secretCommand is command for a line whose end is not recorded.
func (s *session) secretCommand(line, secret string) (reply, error) {
	s.trace.Secret(secret)
	s.trace.Sent(trace.PartLine, line+"[redacted]")
	return s.roundTrip(line + secret)
}

func (s *session) roundTrip(line string) (reply, error) {
	s.arm()
	if _, err := s.conn.Write([]byte(line + "\r\n")); err != nil {
		return reply{}, err
	}
	return s.answer()
}

// appendEnvelope writes what is owed for the message before, then MAIL, RCPT and DATA,
// which must be the last of a group (RFC 2920, 3.1).
func (s *session) appendEnvelope(out []byte, d *draft) []byte {
	if s.owesDot {
		out = append(out, ".\r\n"...)
	}
	if s.owesReset {
		out = append(out, "RSET\r\n"...)
	}
	out = s.appendMail(out, d)
	out = appendRcpt(out, d)
	return append(out, "DATA\r\n"...)
}

// put reads the answer to one command of an envelope. Without PIPELINING it sends the
// command first.
func (s *session) put(at stage, d *draft) (reply, error) {
	if s.pipelining {
		return s.answer()
	}
	out := s.envelope[:0]
	switch at {
	case atMail:
		out = s.appendMail(out, d)
	case atRcpt:
		out = appendRcpt(out, d)
	default:
		out = append(out, "DATA\r\n"...)
	}
	s.envelope = out
	s.recordLines(out)
	s.arm()
	if _, err := s.conn.Write(out); err != nil {
		return reply{}, err
	}
	return s.answer()
}

func (s *session) appendMail(out []byte, d *draft) []byte {
	out = append(out, "MAIL FROM:<"...)
	out = append(out, d.from...)
	if s.sized {
		out = append(out, "> SIZE="...)
		out = strconv.AppendInt(out, int64(d.size), 10)
		return append(out, "\r\n"...)
	}
	return append(out, ">\r\n"...)
}

func appendRcpt(out []byte, d *draft) []byte {
	out = append(out, "RCPT TO:<"...)
	out = append(out, d.to...)
	return append(out, ">\r\n"...)
}

// debt is how many answers to ignore come before those of the envelope.
func (s *session) debt() int {
	n := 0
	if s.owesDot {
		n++
	}
	if s.owesReset {
		n++
	}
	return n
}

// settle sends what is owed, so that the session can be idle.
func (s *session) settle() error {
	for _, debt := range []struct {
		owed *bool
		line string
	}{{&s.owesDot, "."}, {&s.owesReset, "RSET"}} {
		if !*debt.owed {
			continue
		}
		if a, err := s.command(debt.line); err != nil || a.code == 421 {
			return errors.Join(err, errReplyForm)
		}
		*debt.owed = false
	}
	return nil
}

// dismiss sends QUIT and closes. It does not wait for the answer, and no longer than a moment
// for a server that does not read: then what is beneath TLS is closed, since closing a TLS
// connection sends an alert, for which it waits 5 s.
func (s *session) dismiss() {
	defer time.AfterFunc(dismissTime, func() { _ = beneath(s.conn).Close() }).Stop()
	_ = s.conn.SetDeadline(time.Now().Add(dismissTime))
	_, _ = s.conn.Write([]byte("QUIT\r\n")) // the server closes in any case
	_ = s.conn.Close()
}

// beneath is the connection of a TLS connection, and otherwise conn itself.
func beneath(conn net.Conn) net.Conn {
	if t, isTLS := conn.(interface{ NetConn() net.Conn }); isTLS {
		return t.NetConn()
	}
	return conn
}

// quit sends QUIT and closes. It waits a second at most for the answer.
func (s *session) quit() {
	defer time.AfterFunc(quitTime, func() { _ = beneath(s.conn).Close() }).Stop() // as in dismiss
	s.timeout = quitTime
	_, _ = s.command("QUIT") // the server closes in any case
	_ = s.conn.Close()
}

// hangUp closes without QUIT, and without the alert of TLS, for which a server that does not read
// would be waited for.
func (s *session) hangUp() { _ = beneath(s.conn).Close() }

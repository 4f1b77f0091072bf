package smtp

import (
	"errors"
	"net"
	"os"
	"strconv"
	"sync"
	"time"
)

// session is one connection to a server, past its EHLO.
type session struct {
	replies
	conn    net.Conn
	timeout time.Duration // for one round trip
	used    bool          // an envelope has been sent over it

	pipelining bool
	sized      bool // the server wants to know sizes
	limit      int  // the largest message that it takes, in bytes; 0: it does not say

	owesDot   bool // it waits for the content of a message that has no recipients
	owesReset bool // a transaction is open that goes nowhere

	clock    sync.Mutex // guards over, so that an interrupt is not undone by a new deadline
	over     bool
	envelope []byte
}

// arm gives the next round trip its time. A deadline is kept on the monotonic
// clock, so a step of the wall clock neither shortens nor extends it.
func (s *session) arm() {
	s.clock.Lock()
	defer s.clock.Unlock()
	if !s.over {
		_ = s.conn.SetDeadline(time.Now().Add(s.timeout)) // fails on a closed connection only, as the next call will
	}
}

// interrupt ends what is on its way, and whatever would follow.
func (s *session) interrupt() {
	s.clock.Lock()
	defer s.clock.Unlock()
	s.over = true
	_ = s.conn.SetDeadline(time.Unix(1, 0)) // long past
}

// lastLook is how long an answer is looked for once the time is over: long
// enough to find what has come already.
const lastLook = time.Millisecond

// answer reads one reply. When the time is over it looks once more whether the
// answer is there, since an answer in hand is better than a doubt.
func (s *session) answer() (reply, error) {
	a, err := s.next()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		_ = s.conn.SetReadDeadline(time.Now().Add(lastLook))
		a, err = s.next()
	}
	return a, err
}

// command sends one line and reads its answer.
func (s *session) command(line string) (reply, error) {
	s.arm()
	if _, err := s.conn.Write([]byte(line + "\r\n")); err != nil {
		return reply{}, err
	}
	return s.answer()
}

// appendEnvelope writes what opens a message: what is owed for the one before,
// then MAIL, RCPT and DATA, which must be the last of a group (RFC 2920, 3.1).
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

// put reads the answer to one command of an envelope. Where commands do not
// travel in groups it sends the command first.
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

// debt is how many answers of no interest come before those of the envelope.
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

// settle pays what is owed, so that the session can rest.
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

// quit says goodbye and closes. It waits a moment at most for the answer.
func (s *session) quit() {
	s.timeout = time.Second
	_, _ = s.command("QUIT") // the server closes whatever it says
	_ = s.conn.Close()
}

package sink

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"strconv"
)

// session is one connection. in[start:end] is the input that is not parsed yet; out
// are the replies, which are sent when all input is parsed.
type session struct {
	*sink
	conn       net.Conn
	in, out    []byte
	start, end int
	body       bool  // between DATA and the final dot
	size       int   // of the body so far
	number     int64 // of the recipient
	done       bool  // QUIT was received
}

const bufferSize = 256 << 10

func (s *sink) serve(conn net.Conn) {
	defer s.leave(conn)
	t := &session{sink: s, conn: conn, in: make([]byte, bufferSize),
		out: append(make([]byte, 0, 4<<10), "220 sink ESMTP\r\n"...), number: -1}
	for {
		for t.step() {
		}
		if _, err := conn.Write(t.out); err != nil || t.done {
			return
		}
		t.out = t.out[:0]
		if !t.read() {
			return
		}
	}
}

// read moves the input to the start of the buffer and reads more. It is false at the
// end of the input, or if a line fills the whole buffer.
func (t *session) read() bool {
	if t.start > 0 {
		copy(t.in, t.in[t.start:t.end])
		t.start, t.end = 0, t.end-t.start
	}
	n, err := t.conn.Read(t.in[t.end:])
	t.end += n
	return err == nil && n > 0
}

// step parses one command or one part of a body. It is false when it needs more input.
func (t *session) step() bool {
	rest := t.in[t.start:t.end]
	if t.body {
		return t.skipBody(rest)
	}
	n := bytes.IndexByte(rest, '\n')
	if n < 0 {
		return false
	}
	t.start += n + 1
	t.command(bytes.TrimSuffix(rest[:n], []byte{'\r'}))
	return true
}

var finalDot = []byte("\r\n.\r\n")

// skipBody searches for the end of a body. Only the last four bytes of the input can
// be the beginning of it.
func (t *session) skipBody(rest []byte) bool {
	n, end := bytes.Index(rest, finalDot), len(finalDot)
	if t.size == 0 && bytes.HasPrefix(rest, finalDot[2:]) {
		n, end = 0, len(finalDot)-2
	}
	if n < 0 {
		if keep := len(finalDot) - 1; len(rest) > keep {
			t.size += len(rest) - keep
			t.start += len(rest) - keep
		}
		return false
	}
	t.start += n + end
	t.take(t.number, t.size+n)
	t.body, t.number = false, -1
	t.out = append(t.out, "250 2.0.0 Ok: queued as "...)
	t.out = strconv.AppendInt(t.out, t.counts.Load().messages.Load(), 10)
	t.out = append(t.out, "\r\n"...)
	return true
}

func (t *session) command(line []byte) {
	verb, _, _ := bytes.Cut(line, []byte{' '})
	switch string(verb) {
	case "MAIL", "RSET", "NOOP":
		t.reply("250 2.0.0 Ok")
	case "RCPT":
		t.number = numberIn(line)
		t.reply("250 2.1.5 Ok")
	case "DATA":
		t.body, t.size = true, 0
		t.reply("354 Go ahead")
	case "EHLO":
		t.reply("250-sink\r\n250-PIPELINING\r\n250-8BITMIME\r\n250 ENHANCEDSTATUSCODES")
	case "HELO":
		t.reply("250 sink")
	case "QUIT":
		t.done = true
		t.reply("221 2.0.0 Bye")
	default:
		t.control(string(verb), line)
	}
}

// control handles the commands that other servers do not have.
func (t *session) control(verb string, line []byte) {
	var first, last int64
	switch verb {
	case "XRESET":
		t.reset()
		t.reply("250 Ok")
	case "XSTAT":
		if _, err := fmt.Sscanf(string(line), "XSTAT %d %d", &first, &last); err != nil {
			t.reply("501 XSTAT needs two numbers")
			return
		}
		text, _ := json.Marshal(t.stats(first, last)) // numbers alone
		t.reply("250 " + string(text))
	default:
		t.reply("500 5.5.1 Unknown command")
	}
}

func (t *session) reply(line string) {
	t.out = append(append(t.out, line...), "\r\n"...)
}

// numberIn reads the digits of the local part in RCPT TO:<user123@...>.
func numberIn(line []byte) int64 {
	at := bytes.IndexByte(line, '@')
	number, any := int64(0), false
	for i := bytes.IndexByte(line, '<') + 1; i < at; i++ {
		if c := line[i]; c >= '0' && c <= '9' && number < 1<<40 {
			number, any = number*10+int64(c-'0'), true
		}
	}
	if !any {
		return -1
	}
	return number
}

package catcher

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
)

// mostBytes is the largest message that is accepted.
const mostBytes = 32 << 20

var (
	errOver = errors.New("the session has ended")
	errSize = errors.New("the message is too large")
)

// session is one SMTP session.
type session struct {
	*Catcher
	conn   net.Conn
	number int
	in     *bufio.Reader
	out    *bufio.Writer

	open bool     // MAIL was accepted
	to   []string // recipients accepted since
	last string   // the last recipient named
	body []byte   // used again for each message
}

func newSession(c *Catcher, conn net.Conn, number int) *session {
	return &session{Catcher: c, conn: conn, number: number, in: bufio.NewReaderSize(conn, 64<<10), out: bufio.NewWriterSize(conn, 4<<10)}
}

// run runs the session until one side ends it.
func (t *session) run() {
	err := t.answer(Connect, "", "220 catcher ESMTP")
	for err == nil {
		err = t.step()
	}
	_ = t.out.Flush() // the last replies, if the client still reads
}

// step reads one command. Replies are buffered until the input is empty, so that a
// group of commands gets its replies together (RFC 2920, 3.2).
func (t *session) step() error {
	if t.in.Buffered() == 0 {
		if err := t.out.Flush(); err != nil {
			return err
		}
	}
	line, err := t.in.ReadSlice('\n')
	if err != nil {
		return err
	}
	line = bytes.TrimRight(line, "\r\n")
	verb, rest, _ := bytes.Cut(line, []byte{' '})
	switch string(bytes.ToUpper(verb)) {
	case "MAIL":
		return t.mail()
	case "RCPT":
		return t.rcpt(address(rest))
	case "DATA":
		return t.data()
	case "EHLO":
		t.reset()
		return t.reply(t.offers)
	case "HELO":
		t.reset()
		return t.reply("250 catcher")
	case "RSET":
		t.reset()
		return t.reply("250 2.0.0 Ok")
	case "NOOP":
		return t.reply("250 2.0.0 Ok")
	case "QUIT":
		_ = t.reply("221 2.0.0 Bye") // run flushes
		return errOver
	}
	return t.reply("502 5.5.1 Unknown command")
}

func offers(o Options) string {
	lines := "250-catcher\r\n250-8BITMIME\r\n250-ENHANCEDSTATUSCODES\r\n"
	if !o.LockStep {
		lines += "250-PIPELINING\r\n"
	}
	return lines + fmt.Sprintf("250 SIZE %d", mostBytes)
}

func (t *session) reset() { t.open, t.to = false, t.to[:0] }

func (t *session) mail() error {
	if t.open {
		return t.reply("503 5.5.1 One MAIL at a time")
	}
	return t.answer(Mail, "", "250 2.1.0 Ok")
}

func (t *session) rcpt(to string) error {
	if !t.open || to == "" {
		return t.reply("503 5.5.1 MAIL and an address first")
	}
	t.last = to
	return t.answer(Rcpt, "", "250 2.1.5 Ok")
}

func (t *session) data() error {
	if len(t.to) == 0 {
		return t.reply("554 5.5.1 No valid recipients")
	}
	return t.answer(Data, "", "354 Go ahead")
}

// address takes <a@b> out of FROM:<a@b> or TO:<a@b>.
func address(rest []byte) string {
	from, to := bytes.IndexByte(rest, '<'), bytes.LastIndexByte(rest, '>')
	if from < 0 || to < from {
		return ""
	}
	return string(rest[from+1 : to])
}

func (t *session) reply(text string) error {
	_, _ = t.out.WriteString(text)
	_, err := t.out.WriteString("\r\n")
	return err
}

// answer sends the usual reply, or simulates the fault.
func (t *session) answer(at Stage, messageID, usual string) error {
	e := Event{Stage: at, N: int(t.counts[at].Add(1)), Connection: t.number, MessageID: messageID}
	if at >= Rcpt {
		e.Recipient = t.last
	}
	f := (*t.faults.Load())(e)
	if at == Dot && f.keeps() {
		usual += t.keep(messageID)
	}
	if err := t.delay(f); err != nil {
		return err
	}
	if f.Reply != "" {
		usual = f.Reply
	}
	if f.Close && f.Reply == "" {
		return errOver
	}
	if err := t.reply(usual); err != nil || f.Close {
		return errors.Join(err, errOver)
	}
	return t.move(at, usual)
}

// delay waits. A hanging server sends nothing until the client disconnects.
func (t *session) delay(f Fault) error {
	if f.Delay == 0 && !f.Hang {
		return nil
	}
	if err := t.out.Flush(); err != nil {
		return err
	}
	if f.Hang {
		for {
			if _, err := t.in.Discard(1); err != nil {
				return err
			}
		}
	}
	select {
	case <-time.After(f.Delay):
		return nil
	case <-t.ctx.Done():
		return errOver
	}
}

// move changes the state by the reply that was sent.
func (t *session) move(at Stage, sent string) error {
	ok := strings.HasPrefix(sent, "2")
	switch at {
	case Connect:
		if !ok {
			return errOver
		}
	case Mail:
		t.open = ok
	case Rcpt:
		if ok {
			t.to = append(t.to, t.last)
		}
	case Data:
		if strings.HasPrefix(sent, "354") {
			return t.content()
		}
	}
	return nil
}

// content reads a message up to its dot and replies.
func (t *session) content() error {
	if t.in.Buffered() == 0 {
		if err := t.out.Flush(); err != nil {
			return err
		}
	}
	defer t.reset()
	switch err := t.read(); {
	case errors.Is(err, errSize):
		return t.reply("552 5.3.4 Message too large")
	case err != nil:
		return err
	}
	return t.answer(Dot, messageID(t.body), "250 2.0.0 Ok: queued as ")
}

// read reads lines up to the dot and removes dots that were stuffed
// (RFC 5321, 4.5.2). A dot on a line counts only where lines end in CRLF.
func (t *session) read() error {
	t.body = t.body[:0]
	size, begins := 0, true
	for {
		line, err := t.in.ReadSlice('\n')
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
		if begins && string(line) == ".\r\n" {
			break
		}
		if begins && line[0] == '.' {
			line = line[1:]
		}
		if size += len(line); size > mostBytes {
			t.body = t.body[:0]
		}
		t.body = append(t.body, line...)
		begins = bytes.HasSuffix(t.body, []byte("\r\n"))
	}
	if size > mostBytes {
		return errSize
	}
	return nil
}

// keep records the message for each recipient and returns its name.
func (t *session) keep(id string) string {
	return t.ledger.enter(id, t.to, t.number, t.body)
}

// messageID reads the header's Message-ID, with its brackets.
func messageID(mail []byte) string {
	for len(mail) > 0 {
		line, rest, _ := bytes.Cut(mail, []byte("\r\n"))
		if len(line) == 0 {
			return ""
		}
		if len(line) > 11 && bytes.EqualFold(line[:11], []byte("Message-ID:")) {
			value := bytes.TrimSpace(line[11:])
			if len(value) == 0 { // folded
				value, _, _ = bytes.Cut(rest, []byte("\r\n"))
			}
			return string(bytes.TrimSpace(value))
		}
		mail = rest
	}
	return ""
}

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

// mostBytes is the largest message that is taken.
const mostBytes = 32 << 20

var (
	errOver = errors.New("the conversation is over")
	errSize = errors.New("the message is too large")
)

// talk is one SMTP conversation.
type talk struct {
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

func newTalk(c *Catcher, conn net.Conn, number int) *talk {
	return &talk{Catcher: c, conn: conn, number: number, in: bufio.NewReaderSize(conn, 64<<10), out: bufio.NewWriterSize(conn, 4<<10)}
}

// run talks until one of the two has had enough.
func (t *talk) run() {
	err := t.answer(Connect, "", "220 catcher ESMTP")
	for err == nil {
		err = t.step()
	}
	_ = t.out.Flush() // what is left to say, if anybody listens
}

// step takes one command. Answers wait until everything that came is read, so
// a group of commands gets its answers in one piece (RFC 2920, 3.2).
func (t *talk) step() error {
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
		t.forget()
		return t.say(t.offers)
	case "HELO":
		t.forget()
		return t.say("250 catcher")
	case "RSET":
		t.forget()
		return t.say("250 2.0.0 Ok")
	case "NOOP":
		return t.say("250 2.0.0 Ok")
	case "QUIT":
		_ = t.say("221 2.0.0 Bye") // run flushes
		return errOver
	}
	return t.say("502 5.5.1 Unknown command")
}

func offers(o Options) string {
	lines := "250-catcher\r\n250-8BITMIME\r\n250-ENHANCEDSTATUSCODES\r\n"
	if !o.LockStep {
		lines += "250-PIPELINING\r\n"
	}
	return lines + fmt.Sprintf("250 SIZE %d", mostBytes)
}

func (t *talk) forget() { t.open, t.to = false, t.to[:0] }

func (t *talk) mail() error {
	if t.open {
		return t.say("503 5.5.1 One MAIL at a time")
	}
	return t.answer(Mail, "", "250 2.1.0 Ok")
}

func (t *talk) rcpt(to string) error {
	if !t.open || to == "" {
		return t.say("503 5.5.1 MAIL and an address first")
	}
	t.last = to
	return t.answer(Rcpt, "", "250 2.1.5 Ok")
}

func (t *talk) data() error {
	if len(t.to) == 0 {
		return t.say("554 5.5.1 No valid recipients")
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

func (t *talk) say(text string) error {
	_, _ = t.out.WriteString(text)
	_, err := t.out.WriteString("\r\n")
	return err
}

// answer says the usual, or does what goes wrong instead.
func (t *talk) answer(at Stage, messageID, usual string) error {
	e := Event{Stage: at, N: int(t.counts[at].Add(1)), Connection: t.number, MessageID: messageID}
	if at >= Rcpt {
		e.Recipient = t.last
	}
	f := (*t.faults.Load())(e)
	if at == Dot && f.keeps() {
		usual += t.keep(messageID)
	}
	if err := t.suffer(f); err != nil {
		return err
	}
	if f.Reply != "" {
		usual = f.Reply
	}
	if f.Close && f.Reply == "" {
		return errOver
	}
	if err := t.say(usual); err != nil || f.Close {
		return errors.Join(err, errOver)
	}
	return t.move(at, usual)
}

// suffer waits. A hanging server answers nothing until the client has gone.
func (t *talk) suffer(f Fault) error {
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

// move goes on according to what was answered.
func (t *talk) move(at Stage, said string) error {
	ok := strings.HasPrefix(said, "2")
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
		if strings.HasPrefix(said, "354") {
			return t.content()
		}
	}
	return nil
}

// content reads a message up to its dot and answers it.
func (t *talk) content() error {
	if t.in.Buffered() == 0 {
		if err := t.out.Flush(); err != nil {
			return err
		}
	}
	defer t.forget()
	switch err := t.read(); {
	case errors.Is(err, errSize):
		return t.say("552 5.3.4 Message too large")
	case err != nil:
		return err
	}
	return t.answer(Dot, messageID(t.body), "250 2.0.0 Ok: queued as ")
}

// read takes lines up to the dot, without the dots that were stuffed in
// (RFC 5321, 4.5.2). A dot on a line counts only where lines end in CRLF.
func (t *talk) read() error {
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

// keep enters the message for each recipient and says under which name.
func (t *talk) keep(id string) string {
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

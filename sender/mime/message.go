// Package mime writes a message as an email (RFC 5322, RFC 2045). It guarantees that no
// text of a message can add a header or end the body: all lines are ASCII, at most 998
// bytes long and none begins with a dot, so that no server needs 8BITMIME, SMTPUTF8 or
// dot stuffing.
package mime

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"lemma/sender"
	"lemma/sender/form"
	"lemma/sender/report"
)

// Writer writes messages. It keeps the lines that all messages of a campaign share.
type Writer struct {
	head sharedHeader
}

// Own is what an account adds to the header of its messages. The zero value adds nothing.
type Own struct {
	Domain string                                       // right side of Message-ID; empty: the sender's
	Key    report.Key                                   // proves the Message-ID
	Lines  func(out []byte, notification string) []byte // appends headers with the notification's id; nil: none
}

// Append writes a message and returns the index of its body. It is a pure function of
// the message and what the account adds, so that two attempts send the same bytes.
func (w *Writer) Append(out []byte, m *sender.Message, own Own) (all []byte, body int, err error) {
	if err := w.head.set(m); err != nil {
		return out, 0, err
	}
	if !IsMailbox(m.To) {
		return out, 0, errors.New("the recipient's address cannot be written in an email")
	}
	if form.HasBreak(m.Subject) {
		return out, 0, errors.New("the subject contains a line break or NUL")
	}
	if !form.IsName(m.Notification) {
		return out, 0, errors.New("the notification's id cannot be part of a Message-ID")
	}
	out = appendOwn(out, m, own)
	out = append(out, w.head.block...)
	all, body = appendContent(out, m)
	return all, body, nil
}

// appendOwn writes the lines that differ by message.
func appendOwn(out []byte, m *sender.Message, own Own) []byte {
	out = append(out, "Date: "...)
	out = m.Date.UTC().AppendFormat(out, "Mon, 02 Jan 2006 15:04:05 +0000\r\n")
	out = append(out, "Message-ID: <"...)
	out = own.Key.AppendMessageID(out, m.Notification)
	out = append(out, '@')
	if own.Domain == "" {
		own.Domain = m.FromEmail[strings.LastIndexByte(m.FromEmail, '@')+1:]
	}
	out = append(out, own.Domain...)
	out = append(out, ">\r\nTo: "...)
	out = append(out, m.To...)
	out = append(out, "\r\n"...)
	if own.Lines != nil {
		out = own.Lines(out, m.Notification)
	}
	return appendText(out, "Subject", m.Subject)
}

// appendContent writes the rest of the header and the body, and returns the index of
// the body.
func appendContent(out []byte, m *sender.Message) (all []byte, body int) {
	switch {
	case m.HTML == "":
		return appendSingle(out, "plain", m.Text)
	case m.Text == "":
		return appendSingle(out, "html", m.HTML)
	}
	boundary := boundaryOf(m)
	out = append(out, "Content-Type: multipart/alternative;\r\n boundary=\""...)
	out = append(out, boundary[:]...)
	out = append(out, "\"\r\n\r\n"...)
	body = len(out)
	for _, part := range [2][2]string{{"plain", m.Text}, {"html", m.HTML}} {
		out = append(out, "--"...)
		out = append(out, boundary[:]...)
		out = append(out, "\r\n"...)
		out = appendPart(out, part[0])
		out = appendQuoted(out, part[1])
		out = append(out, "\r\n"...)
	}
	out = append(out, "--"...)
	out = append(out, boundary[:]...)
	return append(out, "--\r\n"...), body
}

func appendSingle(out []byte, kind, text string) (all []byte, body int) {
	out = appendPart(out, kind)
	body = len(out)
	out = appendQuoted(out, text)
	if len(text) == 0 || text[len(text)-1] != '\n' {
		out = append(out, "\r\n"...)
	}
	return out, body
}

func appendPart(out []byte, kind string) []byte {
	out = append(out, "Content-Type: text/"...)
	out = append(out, kind...)
	return append(out, "; charset=utf-8\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n"...)
}

// boundaryOf is derived from the message's seed. "=_" cannot occur in quoted-printable
// text.
func boundaryOf(m *sender.Message) (b [34]byte) {
	b[0], b[1] = '=', '_'
	hex.Encode(b[2:], m.Seed[:])
	return b
}

// sharedHeader is the part of the header that the messages of a campaign share. It is
// written again when one of its fields changes.
type sharedHeader struct {
	fromName, fromEmail, replyTo string
	headers                      [][2]string
	block                        []byte
}

func (h *sharedHeader) set(m *sender.Message) error {
	if len(h.block) > 0 && h.fromName == m.FromName && h.fromEmail == m.FromEmail && h.replyTo == m.ReplyTo &&
		slices.Equal(h.headers, m.Headers) {
		return nil
	}
	h.block = h.block[:0]
	if err := checkHead(m); err != nil {
		return err
	}
	out := appendMailbox(h.block, "From", m.FromName, m.FromEmail)
	if m.ReplyTo != "" {
		out = appendMailbox(out, "Reply-To", "", m.ReplyTo)
	}
	for _, f := range m.Headers {
		var err error
		if out, err = appendField(out, f[0], f[1]); err != nil {
			return err
		}
	}
	h.fromName, h.fromEmail, h.replyTo, h.headers = m.FromName, m.FromEmail, m.ReplyTo, slices.Clone(m.Headers)
	out = append(out, "MIME-Version: 1.0\r\n"...)
	h.block = out
	return nil
}

func checkHead(m *sender.Message) error {
	if !IsMailbox(m.FromEmail) || (m.ReplyTo != "" && !IsMailbox(m.ReplyTo)) {
		return errors.New("the sender's address or the one for replies cannot be written in an email")
	}
	if form.HasBreak(m.FromName) {
		return errors.New("the sender's name contains a line break or NUL")
	}
	for i, f := range m.Headers {
		switch {
		case !isFieldName(f[0]):
			return fmt.Errorf("%q is not the name of a header", f[0])
		case slices.Contains(ownFields, strings.ToLower(f[0])):
			return fmt.Errorf("the header %s is written by the carrier", f[0])
		case form.HasBreak(f[1]):
			return fmt.Errorf("the header %s contains a line break or NUL", f[0])
		case i > 0 && strings.EqualFold(f[0], m.Headers[i-1][0]):
			return fmt.Errorf("the header %s is repeated", f[0])
		}
	}
	return nil
}

// ownFields are the headers that the carrier writes.
var ownFields = []string{
	"bcc", "cc", "content-transfer-encoding", "content-type", "date", "dkim-signature", "from", "message-id",
	"mime-version", "received", "reply-to", "return-path", "sender", "subject", "to",
}

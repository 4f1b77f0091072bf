// Package dsn reads mails that report what became of a message: delivery status
// notifications (RFC 3464) and complaints (abuse reports, RFC 5965). It guarantees that
// a mail reports nothing unless it quotes the proven Message-ID of the message.
//
// # What such a mail proves
//
// Anyone can write a delivery status notification, and nothing in it is signed. The
// id of a notification can be computed from the campaign and the address, so it is no
// secret. Therefore the Message-ID also has a proof of 80 bits: an HMAC of the id with a
// secret of the account (report.Key). Only those that have had the message know the
// proof: the mail servers on its way, and the recipient. So a mail with the proof is
// from one of them. Recipients can report a bounce of their own address, which stops
// messages to themselves only. A mail without the proof is refused as forged, whatever
// it contains.
//
// A report has no address: a recipient could write that of another into a mail with the
// proof of their own message, and suppress it once retention has dropped the notification.
//
// # What it reports
//
//	action     status                     report
//	failed     5.1.1 and other addresses  bounced
//	failed     4.x.x, 5.2.2               soft_bounced
//	failed     other                      undelivered
//	delayed                               the same
//	relayed                               accepted
//	delivered, expanded                   delivered
//	other                                 (none)
//
//	feedback type             report
//	abuse, fraud, virus, other  complained
//	opt-out, opt-out-list     unsubscribed
//	not-spam, other           (none)
//
// Package report has the table of status codes. If the diagnostic code has a more exact
// status code than x.0.0, that one decides. A notification about several addresses,
// such as those of an alias, reports the best of their results: a bounce of one of them
// is no bounce of the alias.
//
// Each report proves that the mail server has accepted the message. Its id is made of
// the notification and the type. So one notification has at most one report of each
// type, however many mails are written.
//
// Mails in other forms, such as automatic answers, are refused as unreadable.
package dsn

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/mail"
	"slices"
	"strings"
	"time"

	"lemma/events"
	"lemma/sender"
	"lemma/sender/report"
)

// Bounds of a mail. What is beyond them is not read.
const (
	mostParts  = 10
	mostPart   = 64 << 10
	mostFields = 500
	mostHeader = 64 << 10
	mostBlocks = 100
	mostDate   = 200
	mostType   = 2000 // bytes of a Content-Type: to parse thousands of parameters takes long
)

type receiver struct{ key report.Key }

// New makes a receiver of mails to one account, whose key proves its Message-IDs.
func New(key report.Key) sender.Receiver { return receiver{key} }

// FailuresOnly is part of sender.FailuresOnly: mail servers report only failures.
func (r receiver) FailuresOnly() {}

// Receive reads a mail, which is the body of the request. The end of a mail may be
// missing.
func (r receiver) Receive(_ context.Context, w sender.WebhookRequest) ([]events.Report, error) {
	if err := sender.CheckSize(w.Body); err != nil {
		return nil, err
	}
	m, err := read(w.Body)
	if err != nil {
		return nil, err
	}
	notification, err := r.notification(m.ids)
	if err != nil {
		return nil, err
	}
	one := m.report(w.Redact)
	if one.Type == "" {
		return nil, nil
	}
	one.ID = "dsn/" + notification + "/" + string(one.Type)
	one.Notification = notification
	one.OccurredAt = plausible(one.OccurredAt, w.At)
	return []events.Report{one}, nil
}

// notification finds the proven Message-ID that the mail quotes.
func (r receiver) notification(ids []string) (string, error) {
	found := false
	for _, id := range ids {
		notification, proven := r.key.OfMessageID(id)
		if proven {
			return notification, nil
		}
		found = found || notification != ""
	}
	if found {
		return "", fmt.Errorf("the Message-ID that the mail quotes is not proven: %w", sender.ErrForged)
	}
	return "", fmt.Errorf("the mail quotes no message of Lemma: %w", sender.ErrUnreadable)
}

// plausible replaces a time that is in the future or older than five days, after which
// mail servers give up.
func plausible(t, at time.Time) time.Time {
	if t.After(at) || at.Sub(t) > 5*24*time.Hour {
		return at.UTC()
	}
	return t.UTC()
}

// mailReport is what is read of a mail.
type mailReport struct {
	date     time.Time
	ids      []string  // Message-IDs that it quotes
	status   [][]field // of a delivery status: of the message, and of each recipient
	feedback []field   // of a complaint
}

type field struct{ name, value string }

func read(body []byte) (*mailReport, error) {
	content, ok := afterHeader(body)
	if !ok {
		return nil, fmt.Errorf("the header of the mail is too long: %w", sender.ErrUnreadable)
	}
	text, err := mail.ReadMessage(bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("not a mail: %w", sender.ErrUnreadable)
	}
	media, params, err := mediaType(text.Header.Get("Content-Type"))
	if err != nil || media != "multipart/report" || params["boundary"] == "" {
		return nil, fmt.Errorf("not a delivery status notification or a complaint: %w", sender.ErrUnreadable)
	}
	if !haveShortHeaders(content, params["boundary"]) {
		return nil, fmt.Errorf("the header of a part is too long: %w", sender.ErrUnreadable)
	}
	m := &mailReport{}
	if len(text.Header.Get("Date")) <= mostDate {
		m.date, _ = text.Header.Date() // without one, the time of arrival
	}
	m.addAll(multipart.NewReader(text.Body, params["boundary"]))
	return m, nil
}

// afterHeader returns what follows a header, if it has at most mostFields fields and mostHeader bytes.
// Packages mail and multipart read any number, which takes milliseconds.
func afterHeader(text []byte) (content []byte, ok bool) {
	fields, size := 0, 0
	for len(text) > 0 {
		var line []byte
		line, text = nextLine(text)
		if len(line) == 0 {
			break
		}
		if line[0] != ' ' && line[0] != '\t' {
			fields++
		}
		if size += len(line) + 1; fields > mostFields || size > mostHeader {
			return nil, false
		}
	}
	return text, true
}

func nextLine(text []byte) (line, rest []byte) {
	line, rest, _ = bytes.Cut(text, []byte("\n"))
	return bytes.TrimSuffix(line, []byte("\r")), rest
}

// haveShortHeaders looks at the headers of the parts.
func haveShortHeaders(content []byte, boundary string) bool {
	for len(content) > 0 {
		line, rest := nextLine(content)
		ok := true
		after, is := bytes.CutPrefix(line, []byte("--"+boundary))
		if is && len(bytes.TrimLeft(after, " \t")) == 0 {
			rest, ok = afterHeader(rest)
		}
		if !ok {
			return false
		}
		content = rest
	}
	return true
}

func mediaType(text string) (media string, params map[string]string, err error) {
	if len(text) > mostType {
		return "", nil, errors.New("the Content-Type is too long")
	}
	return mime.ParseMediaType(text)
}

// addAll reads the parts that have arrived.
func (m *mailReport) addAll(parts *multipart.Reader) {
	for range mostParts {
		part, err := parts.NextPart()
		if err != nil {
			return
		}
		m.add(part)
	}
}

// add reads one part.
func (m *mailReport) add(part *multipart.Part) {
	media, _, _ := mediaType(part.Header.Get("Content-Type")) // a part of another form is left out
	switch media {
	case "message/delivery-status", "message/global-delivery-status":
		m.status = blocks(contentOf(part), mostBlocks)
		for _, name := range []string{"original-message-id", "x-original-message-id"} {
			m.quote(m.status, name)
		}
	case "message/feedback-report":
		if all := blocks(contentOf(part), 1); len(all) > 0 {
			m.feedback = all[0]
		}
	case "message/rfc822", "text/rfc822-headers", "message/global", "message/global-headers":
		m.quote(blocks(contentOf(part), 1), "message-id")
	}
}

func (m *mailReport) quote(all [][]field, name string) {
	for _, block := range all {
		if id := valueOf(block, name); id != "" {
			m.ids = append(m.ids, id)
		}
	}
}

// contentOf is the beginning of a part. Package multipart decodes quoted-printable.
func contentOf(part *multipart.Part) string {
	var r io.Reader = part
	if strings.EqualFold(strings.TrimSpace(part.Header.Get("Content-Transfer-Encoding")), "base64") {
		r = base64.NewDecoder(base64.StdEncoding, part)
	}
	text, _ := io.ReadAll(io.LimitReader(r, mostPart)) // what has arrived is read
	return string(text)
}

// blocks reads groups of fields, which empty lines separate. Lines of other forms are
// left out.
func blocks(text string, most int) (all [][]field) {
	var block []field
	end := func() {
		if len(block) > 0 {
			all = append(all, block)
		}
		block = nil
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		if strings.TrimSpace(line) == "" {
			if end(); len(all) >= most {
				return all
			}
			continue
		}
		if len(block) < mostFields {
			block = appendLine(block, line)
		}
	}
	end()
	return all
}

func appendLine(block []field, line string) []field {
	if (line[0] == ' ' || line[0] == '\t') && len(block) > 0 {
		last := &block[len(block)-1]
		if len(last.value)+len(line) < 2000 {
			last.value = strings.TrimSpace(last.value + " " + strings.TrimSpace(line))
		}
		return block
	}
	name, value, ok := strings.Cut(line, ":")
	if !ok {
		return block
	}
	return append(block, field{strings.ToLower(strings.TrimSpace(name)), strings.TrimSpace(value)})
}

// valueOf is the first value of a field, or empty.
func valueOf(block []field, name string) string {
	if i := slices.IndexFunc(block, func(f field) bool { return f.name == name }); i >= 0 {
		return block[i].value
	}
	return ""
}

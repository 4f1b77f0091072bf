// Package report reads what provider events of all carriers have in common: ids that Lemma has
// sent with a message, reply codes and causes. It guarantees that each value is short
// and has the form that Lemma stores, whatever a carrier or a mail server has written.
//
// It also makes the Message-IDs by which reports about emails are matched.
package report

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"regexp"
	"strconv"
	"strings"

	"lemma"
	"lemma/events"
)

// mostID is the length of the longest id of a carrier that is stored.
const mostID = 200

// Short is an id of a carrier, without blanks at its ends. It is empty if it is not
// printable ASCII of at most 200 bytes.
func Short(id string) string {
	id = strings.TrimSpace(id)
	if len(id) > mostID || strings.ContainsFunc(id, func(r rune) bool { return r < ' ' || r > '~' }) {
		return ""
	}
	return id
}

// Notification is the id of a notification or of a test message, or empty if the text has
// another form.
func Notification(text string) string {
	if _, _, ok := lemma.ParseNotificationID(text); !ok && !lemma.IsTestID(text) {
		return ""
	}
	return text
}

// Recipient is the address of a report of a type about a message with an id of Notification. It
// is empty for a type that adds no suppression, and for a message that is no notification of
// Lemma, such as one that another system has sent over the account.
func Recipient(of events.Type, notification, address string) string {
	if _, _, ok := lemma.ParseNotificationID(notification); !ok || !of.Suppresses() {
		return ""
	}
	return address
}

// Attempt is the number of an attempt, or 0.
func Attempt(text string) int {
	if text == "1" || text == "2" {
		return int(text[0] - '0')
	}
	return 0
}

var (
	replyCode = regexp.MustCompile(`(?:^|[\s;:(])([2-5][0-9]{2})(?:[\s;,:)-]|$)`)
	// RFC 3463, 2.
	enhancedCode = regexp.MustCompile(`(?:^|[^0-9.])([245])\.([0-9]{1,3})\.([0-9]{1,3})(?:[^0-9.]|\.?$|\.\s)`)
)

// Code is the SMTP reply code at the beginning of a text, or 0.
func Code(text string) int {
	found := replyCode.FindStringSubmatch(text[:min(len(text), 60)])
	if found == nil {
		return 0
	}
	code, _ := strconv.Atoi(found[1]) // three digits
	return code
}

// Status is the enhanced status code in a text, such as 5.1.1, or empty.
func Status(text string) string {
	found := enhancedCode.FindStringSubmatch(text[:min(len(text), 500)])
	if found == nil {
		return ""
	}
	return found[1] + "." + found[2] + "." + found[3]
}

// Reason is a carrier's name for a cause in the form that reasons have: MailboxFull and
// "Mailbox full" become mailbox_full. It has at most 60 bytes.
func Reason(name string) string {
	out := make([]byte, 0, len(name)+8)
	lower := false
	for i := 0; i < len(name) && len(out) < 60; i++ {
		switch c := name[i]; {
		case c >= 'A' && c <= 'Z':
			if lower {
				out = append(out, '_')
			}
			out, lower = append(out, c|0x20), false
		case c >= 'a' && c <= 'z' || c >= '0' && c <= '9':
			out, lower = append(out, c), true
		case len(out) > 0 && out[len(out)-1] != '_':
			out, lower = append(out, '_'), false
		}
	}
	return strings.Trim(string(out), "_")
}

// Key is the key that proves Message-IDs; nil for none.
type Key []byte

var proofEncoding = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

// AppendMessageID writes the local part of the Message-ID of a notification: its id,
// and with a key a proof that only recipients and carriers of the message receive. The id
// alone can be computed from the campaign and the address.
func (k Key) AppendMessageID(out []byte, notification string) []byte {
	out = append(out, notification...)
	if k == nil {
		return out
	}
	out = append(out, '.')
	return append(out, k.proof(notification)...)
}

// proof has 80 bits.
func (k Key) proof(notification string) string {
	mac := hmac.New(sha256.New, k)
	mac.Write([]byte("message-id/1." + notification))
	return proofEncoding.EncodeToString(mac.Sum(nil)[:10])
}

// OfMessageID is the notification of a Message-ID, with or without angle brackets, and
// whether the proof is right. It is empty if Lemma has not made the id.
func (k Key) OfMessageID(text string) (notification string, proven bool) {
	text = strings.TrimPrefix(strings.TrimSpace(text), "<")
	local, _, _ := strings.Cut(text, "@")
	notification, proof, _ := strings.Cut(local, ".")
	if notification = Notification(notification); notification == "" {
		return "", false
	}
	return notification, k != nil && hmac.Equal([]byte(proof), []byte(k.proof(notification)))
}

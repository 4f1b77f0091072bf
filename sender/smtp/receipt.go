package smtp

import (
	"bytes"
	"strings"
	"time"

	"lemma/sender"
)

// stage is the command of a message that was answered last, or is to be answered.
type stage int

const (
	atMail stage = iota
	atRcpt
	atData
	atBody // since the body's first byte
)

// refusals are the reasons of 4xx and 5xx at each stage.
var refusals = [...]struct{ temporary, permanent string }{
	atMail: {"sender_refused", "sender_rejected"},
	atRcpt: {"recipient_refused", "recipient_rejected"},
	atData: {"data_refused", "data_rejected"},
	atBody: {"message_refused", "message_rejected"},
}

// goesOn reports whether a reply allows the next command. 2xx to DATA, or 3xx to any
// other command, is invalid.
func goesOn(at stage, code int) bool {
	if at == atData {
		return code == 354
	}
	return code >= 200 && code < 300
}

// classify is the part of the outcome table that a server's reply decides: any reply
// to a body, and replies to other commands after which none follows.
func classify(at stage, code int) sender.Receipt {
	r := sender.Receipt{Code: code}
	switch {
	case code == 421:
		r.Outcome, r.Provider, r.Reason = sender.NotAccepted, true, "service_closing"
	case code >= 400 && code < 500:
		r.Outcome, r.Provider, r.Reason = sender.NotAccepted, at == atMail, refusals[at].temporary
	case at == atMail && code == 552: // the SIZE is refused, not the sender (RFC 1870, 6.1)
		r.Outcome, r.Reason = sender.Rejected, "message_too_large"
	case at == atMail && code >= 500 && code < 600:
		r.Outcome, r.Provider, r.Definite, r.Reason = sender.NotAccepted, true, true, refusals[at].permanent
	case code >= 500 && code < 600:
		r.Outcome, r.Reason = sender.Rejected, refusals[at].permanent
	case at == atBody && goesOn(at, code):
		r.Outcome = sender.Accepted
	default:
		r = broken(at, "protocol_error")
		r.Code = code
	}
	return r
}

// broken is the part of the table for missing and invalid replies. The outcome is
// unknown from the body's first byte on. A server that does not answer RCPT or DATA in
// time has accepted the connection and the sender, so the cause is this recipient.
func broken(at stage, reason string) sender.Receipt {
	if at == atBody {
		return sender.Receipt{Outcome: sender.Unknown, Reason: reason}
	}
	return sender.Receipt{Outcome: sender.NotAccepted, Provider: at == atMail || reason != "timeout", Reason: reason}
}

// receiptFor makes the receipt for a reply. An accepted message has the server's id
// and no text, to save space. The id is read from the reply without the secrets of the
// account: it may end within a secret.
func (c *carrier) receiptFor(at stage, a reply, to string) sender.Receipt {
	r := classify(at, a.code)
	r.At = time.Now()
	if at == atRcpt && r.Outcome == sender.Rejected && isUnknown(a.text) {
		r.Reason = sender.ReasonUnknownRecipient
	}
	if r.Outcome == sender.Accepted {
		r.CarrierID = carrierID(c.redact.Bytes(a.text))
	} else {
		r.Detail = sender.Detail(c.redact, string(a.text), to)
	}
	return r
}

// isUnknown reports whether a refusal at RCPT is definitely about a recipient that does not exist (RFC 3463, 3.2;
// RFC 7505). Servers refuse senders there, too: Postfix by 5.1.0, others also by 5.1.1. 5.1.2 may be a fault of
// names, and 5.2.1 is also for those that get too many messages at the moment.
func isUnknown(text []byte) bool {
	switch string(enhanced.Find(text)) {
	case "5.1.1", "5.1.6", "5.1.10":
		lower := bytes.ToLower(text)
		return !bytes.Contains(lower, []byte("sender")) && !bytes.Contains(lower, []byte("relay"))
	}
	return false
}

// carrierID finds the server's id of an accepted message. Postfix writes "queued as
// X", Exim "id=X", most others "ok X".
func carrierID(text []byte) string {
	for _, before := range []string{"queued as ", "id=", "ok ", "ok: "} {
		if i := lastFold(text, before); i >= 0 {
			return word(text[i+len(before):])
		}
	}
	return ""
}

// lastFold is the last index at which a word begins with wanted, in any case.
func lastFold(text []byte, wanted string) int {
	for i := len(text) - len(wanted); i >= 0; i-- {
		if text[i]|0x20 == wanted[0] && strings.EqualFold(string(text[i:i+len(wanted)]), wanted) && (i == 0 || !alphanumeric(text[i-1])) {
			return i
		}
	}
	return -1
}

func alphanumeric(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// word is the first word of a text if it can be an id: printable ASCII with a digit,
// at most 100 bytes.
func word(text []byte) string {
	text = bytes.TrimLeft(text, " <")
	n := 0
	for n < len(text) && text[n] > ' ' && text[n] < 0x7f && strings.IndexByte(">;,()", text[n]) < 0 {
		n++
	}
	if n > 100 || !bytes.ContainsAny(text[:n], "0123456789") {
		return ""
	}
	return string(text[:n])
}

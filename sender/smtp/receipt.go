package smtp

import (
	"bytes"
	"strings"
	"time"
	"unicode/utf8"

	"lemma/sender"
)

// stage is how far the conversation about one message had come.
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

// goesOn says whether a reply lets the conversation go on from a stage. A
// server that says 2xx to DATA, or 3xx to anything else, makes no sense.
func goesOn(at stage, code int) bool {
	if at == atData {
		return code == 354
	}
	return code >= 200 && code < 300
}

// judge is the part of the outcome table that a server's own answer decides.
// It is called for the body's reply, and for any other that does not go on.
func judge(at stage, code int) sender.Receipt {
	r := sender.Receipt{Code: code}
	switch {
	case code == 421:
		r.Outcome, r.Provider, r.Reason = sender.NotAccepted, true, "service_closing"
	case code >= 400 && code < 500:
		r.Outcome, r.Provider, r.Reason = sender.NotAccepted, at == atMail, refusals[at].temporary
	case at == atMail && code == 552: // it is the SIZE that is refused, not the sender (RFC 1870, 6.1)
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

// broken is the part of the table for answers that did not come, or made no
// sense. The body's first byte divides what is known from what is not. A server
// that does not answer RCPT or DATA in time has accepted the connection and the
// sender: it waits for something of this recipient.
func broken(at stage, reason string) sender.Receipt {
	if at == atBody {
		return sender.Receipt{Outcome: sender.Unknown, Reason: reason}
	}
	return sender.Receipt{Outcome: sender.NotAccepted, Provider: at == atMail || reason != "timeout", Reason: reason}
}

// heard makes the receipt for a reply. An accepted message carries the server's
// name for it and no words: they would be stored a million times.
func heard(at stage, a reply, to string) sender.Receipt {
	r := judge(at, a.code)
	r.At = time.Now()
	if r.Outcome == sender.Accepted {
		r.CarrierID = carrierID(a.text)
	} else {
		r.Detail = detail(string(a.text), to)
	}
	return r
}

const mostDetail = 200

// detail is a server's text on one line, without the recipient's address and
// without what could not be shown, of at most 200 bytes.
func detail(text, address string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == utf8.RuneError {
			return ' '
		}
		return r
	}, text)
	text = strings.Join(strings.Fields(blank(text, address)), " ")
	if len(text) <= mostDetail {
		return text
	}
	cut := mostDetail
	for !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut]
}

// blank takes an address out of a text, however it is capitalised.
func blank(text, address string) string {
	if address == "" {
		return text
	}
	var out strings.Builder
	for {
		i := indexFold(text, address)
		if i < 0 {
			out.WriteString(text)
			return out.String()
		}
		out.WriteString(text[:i])
		out.WriteString("[address]")
		text = text[i+len(address):]
	}
}

// indexFold is strings.Index for ASCII of any case.
func indexFold(s, part string) int {
	for i := 0; i+len(part) <= len(s); i++ {
		if strings.EqualFold(s[i:i+len(part)], part) {
			return i
		}
	}
	return -1
}

// carrierID finds the server's name for a message in what it said when it took
// it. Postfix says "queued as X", Exim "id=X", most others "ok X".
func carrierID(text []byte) string {
	for _, before := range []string{"queued as ", "id=", "ok ", "ok: "} {
		if i := lastFold(text, before); i >= 0 {
			return word(text[i+len(before):])
		}
	}
	return ""
}

// lastFold finds the last place where a text, but for case, says what is
// wanted as the beginning of a word.
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

// word is the first word of a text when it can be a name: printable ASCII with
// a digit in it, of at most 100 bytes.
func word(text []byte) string {
	text = bytes.TrimLeft(text, " <")
	n := 0
	for n < len(text) && text[n] > ' ' && text[n] < 0x7f && !bytes.ContainsRune([]byte(">;,()"), rune(text[n])) {
		n++
	}
	if n > 100 || !bytes.ContainsAny(text[:n], "0123456789") {
		return ""
	}
	return string(text[:n])
}

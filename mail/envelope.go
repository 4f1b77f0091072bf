package mail

import (
	"maps"
	"slices"
	"strings"

	"lemma"
)

// Rule is a condition on a text, with the code and the detail of the error for a
// text that does not satisfy it.
type Rule struct {
	Code, Detail string
	Holds        func(text string) bool
}

// Rules for the parts of an envelope. An envelope from a request must satisfy all
// of them: every carrier would reject its message, for each recipient.
var (
	AddressRule    = Rule{"address", "must be an email address whose part before the @ is ASCII; SMTPUTF8 is not supported", isAddress}
	SingleLineRule = Rule{"single_line", "must be one line, without line breaks or NUL", isSingleLine}
	HeaderNameRule = Rule{"header_name", "must be a header name: 1 to 60 letters, digits and hyphens, no white space or colon",
		isHeaderName}
	NotReservedRule = Rule{"not_reserved", "must not be a header that Lemma writes itself, or by which a service sends to others",
		isNotReserved}
	NotLiquidRule = Rule{"not_rendered", "must not contain Liquid; only templates and values of headers are rendered", hasNoLiquid}
)

// HasLiquid reports whether a text contains {{ or {%, the beginning of Liquid.
func HasLiquid(text string) bool { return strings.Contains(text, "{{") || strings.Contains(text, "{%") }

func hasNoLiquid(text string) bool { return !HasLiquid(text) }

// Envelope is the part of a message that is the same for all its recipients:
// sender, reply address and headers.
type Envelope struct {
	FromEmail, FromName string
	ReplyTo             string // empty: FromEmail
	Headers             map[string]string
}

// Faults returns all faults of an envelope in the order of their pointers:
// /from/email, /from/name, /headers/{name} and /reply_to. A header has at most one.
func (e Envelope) Faults() []lemma.Field {
	var all []lemma.Field
	check := func(pointer, text string, rules ...Rule) {
		for _, rule := range rules {
			if !rule.Holds(text) {
				all = append(all, lemma.Field{Pointer: pointer, Code: rule.Code, Detail: rule.Detail})
				return
			}
		}
	}
	check("/from/email", e.FromEmail, NotLiquidRule, AddressRule)
	check("/from/name", e.FromName, SingleLineRule, NotLiquidRule)
	seen := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(e.Headers)) {
		pointer, before := HeaderPointer(name), len(all)
		check(pointer, name, HeaderNameRule, NotReservedRule)
		if len(all) == before {
			check(pointer, e.Headers[name], SingleLineRule)
		}
		lower := strings.ToLower(name)
		if len(all) == before && seen[lower] {
			all = append(all,
				lemma.Field{Pointer: pointer, Code: "duplicate", Detail: "must not be given twice; names of headers have no case"})
		}
		seen[lower] = true
	}
	if e.ReplyTo != "" {
		check("/reply_to", e.ReplyTo, NotLiquidRule, AddressRule)
	}
	return all
}

// Canonical returns the envelope with each address as Address.Text. Envelopes are
// stored in this form. Addresses that are not valid stay unchanged.
func (e Envelope) Canonical() Envelope {
	e.FromEmail, e.ReplyTo = canonicalAddress(e.FromEmail), canonicalAddress(e.ReplyTo)
	return e
}

func canonicalAddress(text string) string {
	if a, ok := ParseAddress(text); ok {
		return a.Text
	}
	return text
}

// HeaderPointer is the JSON pointer to a header in a request: /headers/{name}.
func HeaderPointer(name string) string { return lemma.Pointer("headers", name) }

func isAddress(text string) bool {
	_, ok := ParseAddress(text)
	return ok && strings.TrimSpace(text) == text
}

func isSingleLine(text string) bool { return !strings.ContainsAny(text, "\r\n\x00") }

// isHeaderName accepts an RFC 5322 field name (ftext, 3.6.8) that is also a token
// of RFC 9110, since servers differ about the rest. 60 bytes is what carriers
// accept: a name cannot be folded.
func isHeaderName(text string) bool {
	if text == "" || len(text) > 60 {
		return false
	}
	for _, c := range []byte(text) {
		alphanumeric := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !alphanumeric && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return true
}

// reserved are the headers that Lemma or the mail server writes, of which a second one would make
// the message ambiguous, and those by which a service sends a message to others.
var reserved = []string{
	"from", "sender", "reply-to", "to", "cc", "bcc", "subject", "date", "message-id", "in-reply-to", "references", "return-path",
	"received",
	"dkim-signature", "authentication-results", "mime-version",
	"content-type", "content-transfer-encoding", "content-disposition", "content-id",
	"content-description", "delivered-to", "apparently-to", "envelope-to",
	"resent-from", "resent-sender", "resent-to", "resent-cc", "resent-bcc",
	"resent-date", "resent-message-id", "domainkey-signature", "arc-seal", "arc-message-signature", "arc-authentication-results",
	"x-smtpapi", "x-msys-api", "x-mc-bccaddress", // SendGrid, SparkPost and Mandrill send to further addresses that these name
}

func isNotReserved(name string) bool { return !slices.Contains(reserved, strings.ToLower(name)) }

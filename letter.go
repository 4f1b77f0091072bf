package lemma

import (
	"maps"
	"slices"
	"strings"
)

// TextRule is what a text has to be, with the word and the sentence for whoever
// breaks it.
type TextRule struct {
	Code, Detail string
	Holds        func(text string) bool
}

// Rules of the envelope that people write for their letters. Whoever takes one
// from a caller asks all of them: a letter that breaks one is refused by every
// carrier, for each recipient.
var (
	AddressRule     = TextRule{"address", "must be an email address; the part before the @ must be ASCII, since SMTPUTF8 is not supported", isAddress}
	SingleLineRule  = TextRule{"single_line", "must be one line, without line breaks or NUL", isSingleLine}
	HeaderNameRule  = TextRule{"header_name", "a header's name has letters, digits and hyphens, at most 60 of them, and no white space or colon", isHeaderName}
	NotReservedRule = TextRule{"not_reserved", "Lemma writes this header itself", isFree}
	NotLiquidRule   = TextRule{"not_rendered", "Liquid is rendered in templates and in the values of headers, not here: write the text itself", func(text string) bool { return !HasLiquid(text) }}
)

// HasLiquid reports whether a text has the beginning of a {{ }} or a {% %} in it.
func HasLiquid(text string) bool { return strings.Contains(text, "{{") || strings.Contains(text, "{%") }

// Envelope is what a letter says around its content: the same for everybody
// whom it goes to.
type Envelope struct {
	FromEmail, FromName string
	ReplyTo             string // empty: who it is from
	Headers             map[string]string
}

// Faults are all places in which an envelope is one that no mail should have,
// in the order of their pointers: /from/email, /from/name, /headers/{name} and
// /reply_to. A header has one fault at most.
func (e Envelope) Faults() []Field {
	var all []Field
	ask := func(pointer, text string, rules ...TextRule) {
		for _, rule := range rules {
			if !rule.Holds(text) {
				all = append(all, Field{Pointer: pointer, Code: rule.Code, Detail: rule.Detail})
				return
			}
		}
	}
	ask("/from/email", e.FromEmail, NotLiquidRule, AddressRule)
	ask("/from/name", e.FromName, SingleLineRule, NotLiquidRule)
	seen := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(e.Headers)) {
		pointer, before := HeaderPointer(name), len(all)
		ask(pointer, name, HeaderNameRule, NotReservedRule)
		if len(all) == before {
			ask(pointer, e.Headers[name], SingleLineRule)
		}
		lower := strings.ToLower(name)
		if len(all) == before && seen[lower] {
			all = append(all, Field{Pointer: pointer, Code: "duplicate", Detail: "the header is there twice: names in upper and lower case are the same"})
		}
		seen[lower] = true
	}
	if e.ReplyTo != "" {
		ask("/reply_to", e.ReplyTo, NotLiquidRule, AddressRule)
	}
	return all
}

// Canonical is the envelope with its addresses as mail servers take them: the
// domain in ASCII (IDNA) and lower case. Store an envelope in this
// form. Addresses that Faults refuses stay as they are.
func (e Envelope) Canonical() Envelope {
	e.FromEmail, e.ReplyTo = canonicalAddress(e.FromEmail), canonicalAddress(e.ReplyTo)
	return e
}

func canonicalAddress(text string) string {
	if address, _, ok := CanonicalEmail(text); ok {
		return address
	}
	return text
}

// HeaderPointer is where a header stands in a request: /headers/{name}.
func HeaderPointer(name string) string { return "/headers/" + pointerEscapes.Replace(name) }

// pointerEscapes are those of RFC 6901, 3.
var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

func isAddress(text string) bool {
	_, _, ok := CanonicalEmail(text)
	return ok && strings.TrimSpace(text) == text
}

func isSingleLine(text string) bool { return !strings.ContainsAny(text, "\r\n\x00") }

// isHeaderName wants an RFC 5322 field name (ftext, 3.6.8) that is a token of
// RFC 9110 too: what odd servers and clients agree on. Carriers take no longer
// ones, since a name cannot be folded.
func isHeaderName(text string) bool {
	if text == "" || len(text) > 60 {
		return false
	}
	for _, c := range []byte(text) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return true
}

// reserved headers are those that Lemma or the mail server writes: a second one
// would make the mail say two things.
var reserved = []string{
	"from", "sender", "reply-to", "to", "cc", "bcc", "subject", "date", "message-id", "in-reply-to", "references", "return-path", "received",
	"dkim-signature", "authentication-results", "mime-version", "content-type", "content-transfer-encoding", "content-disposition", "content-id",
	"content-description", "delivered-to", "apparently-to", "envelope-to", "resent-from", "resent-sender", "resent-to", "resent-cc", "resent-bcc",
	"resent-date", "resent-message-id", "domainkey-signature", "arc-seal", "arc-message-signature", "arc-authentication-results",
}

func isFree(name string) bool { return !slices.Contains(reserved, strings.ToLower(name)) }

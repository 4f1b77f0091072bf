package address

import (
	netmail "net/mail"
	"net/url"
	"regexp"
	"strings"
	"unicode"

	"lemma"
	"lemma/mail"
)

// NoCountryCode is why a phone number that a carrier reports cannot be read: it is in
// national form.
const NoCountryCode = "no_country_code"

// maxReported bounds a reported email address or phone number with what surrounds it, in bytes.
const maxReported = 1000

// Reported reads an address as carriers and gateways report it, which is more lenient than
// Parse: it decides whose messages stop, and not what is sent to. It returns the canonical
// form, or the reason for which there is none: NoCountryCode or Invalid.
//
//	email  a display name, angle brackets, comments, mailto:, the dot at the end of a domain
//	sms    tel: and similar schemes, 00 instead of +, an international number without either,
//	       and the old forms of mobile numbers of Mexico and Brazil
//
// An email address may be quoted, and one that is several addresses is not read. A number
// without + is read as an international one, and must be valid as that.
func Reported(channel lemma.Channel, value string) (canonical, reason string) {
	switch channel {
	case lemma.SMS:
		return reportedPhone(value)
	case lemma.Push:
		canonical = token(value).Canonical
	default:
		canonical = reportedEmail(value)
	}
	if canonical == "" {
		return "", Invalid
	}
	return canonical, ""
}

func reportedEmail(value string) string {
	text := trim(value)
	if len(text) > maxReported {
		return ""
	}
	for _, read := range []func(string) string{plainly, uri, angled, quoted, byMailHeader} {
		if canonical := canonicalEmail(read(text)); canonical != "" {
			return canonical
		}
	}
	return ""
}

// canonicalEmail is empty for a text that is no address. A domain may have the dot of the root.
func canonicalEmail(text string) string {
	a, _ := mail.ParseAddress(strings.TrimSuffix(trim(text), "."))
	return a.Canonical
}

func plainly(text string) string { return text }

// uri reads mailto: (RFC 6068), smtp: as directories write it, and the address types of
// delivery status notifications (RFC 3464, 2.3.2).
func uri(text string) string {
	if rest, ok := withoutPrefix(text, "rfc822;", "utf-8;", "smtp:"); ok {
		return rest
	}
	rest, ok := withoutPrefix(text, "mailto:")
	if !ok {
		return ""
	}
	rest, _, _ = strings.Cut(rest, "?")
	decoded, err := url.PathUnescape(rest)
	if err != nil {
		return ""
	}
	return decoded
}

// angled reads angle brackets at the end of a text that has no other address.
func angled(text string) string {
	name, rest, ok := strings.Cut(text, "<")
	inside, closed := strings.CutSuffix(rest, ">")
	if !ok || !closed || strings.Contains(name, "@") || strings.ContainsAny(inside, "<>") {
		return ""
	}
	if address := uri(inside); address != "" {
		return address
	}
	return inside
}

// quoted reads a text in quotation marks.
func quoted(text string) string {
	for _, mark := range []string{`"`, `'`} {
		if inside, ok := strings.CutPrefix(text, mark); ok {
			if inside, ok = strings.CutSuffix(inside, mark); ok {
				return inside
			}
		}
	}
	return ""
}

// byMailHeader reads what a header of a mail may have (RFC 5322, 3.4): comments, and a name
// or a local part in quotation marks.
func byMailHeader(text string) string {
	a, err := netmail.ParseAddress(text)
	if err != nil {
		return ""
	}
	return a.Address
}

// phoneSchemes are what stands before a phone number, by the carrier's name of the channel.
var phoneSchemes = []string{"tel:", "sms:", "smsto:", "mms:", "callto:", "whatsapp:", "rcs:", "viber:", "signal:"}

func reportedPhone(value string) (canonical, reason string) {
	text := strings.Map(func(c rune) rune {
		if unicode.Is(unicode.Cf, c) { // such as the marks of directions that address books copy
			return -1
		}
		return c
	}, trim(value))
	if rest, ok := withoutPrefix(text, phoneSchemes...); ok {
		text = strings.TrimSpace(rest)
	}
	number := strings.TrimSpace(strings.TrimPrefix(text, "+"))
	number = strings.TrimPrefix(number, "00")
	for _, spelling := range []string{"+" + number, renumbered(number)} {
		if e164, ok := Phone(spelling, ""); ok {
			return canonicalPhone(e164), ""
		}
	}
	if text != "" && text[0] != '+' && len(text) <= maxPhone && dialable(text) {
		return "", NoCountryCode
	}
	return "", Invalid
}

// Old forms of mobile numbers, which WhatsApp still uses as its ids: Mexico dropped the 1 after
// its country code in 2019, and Brazil put a 9 before the eight digits of mobile numbers until
// 2016. Neither form is valid, so that no other number is meant, but for numbers of Brazil that
// begin with 7: canonicalPhone reads these.
var (
	oldMexico = regexp.MustCompile(`^521(\d{10})$`)
	oldBrazil = regexp.MustCompile(`^55([1-9]\d)([6-9]\d{7})$`)
)

// renumbered returns the number that an old form has today, with +; empty if it is no old form.
func renumbered(number string) string {
	digits := strings.Map(func(c rune) rune {
		if c >= '0' && c <= '9' {
			return c
		}
		return -1
	}, number)
	switch {
	case len(number) > maxPhone || !dialable(number):
		return ""
	case oldMexico.MatchString(digits):
		return oldMexico.ReplaceAllString(digits, "+52$1")
	case oldBrazil.MatchString(digits):
		return oldBrazil.ReplaceAllString(digits, "+55${1}9$2")
	}
	return ""
}

// withoutPrefix removes one of the prefixes, in any case.
func withoutPrefix(text string, prefixes ...string) (rest string, ok bool) {
	for _, p := range prefixes {
		if len(text) > len(p) && strings.EqualFold(text[:len(p)], p) {
			return text[len(p):], true
		}
	}
	return text, false
}

// trim removes white space and invisible characters at both ends.
func trim(text string) string {
	return strings.TrimFunc(text, func(c rune) bool { return unicode.IsSpace(c) || unicode.Is(unicode.Cf, c) || c == 0 })
}

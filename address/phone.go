package address

import (
	"regexp"
	"strings"

	"github.com/nyaruka/phonenumbers"
)

// maxPhone bounds a spelling of a phone number, in bytes. E.164 has at most 15 digits.
const maxPhone = 64

// Phone reads a phone number and returns it in E.164, such as +4930123456. region is
// the country (ISO 3166-1 alpha-2) of numbers in national form; empty: none, and the
// number must begin with +. It must be valid by the numbering plans of libphonenumber.
// Letters and extensions are refused.
func Phone(value, region string) (string, bool) {
	text := strings.TrimSpace(value)
	if text == "" || len(text) > maxPhone || !dialable(text) {
		return "", false
	}
	if region == "" && text[0] != '+' {
		return "", false
	}
	number, err := phonenumbers.Parse(text, region)
	if err != nil || number.GetExtension() != "" || !phonenumbers.IsValidNumber(number) {
		return "", false
	}
	return phonenumbers.Format(number, phonenumbers.E164), true
}

// dialable accepts digits and the usual separators, and one + at the beginning. The
// library would also read letters, extensions and the first of two numbers.
func dialable(text string) bool {
	for i, c := range text {
		switch {
		case c >= '0' && c <= '9', c == '+' && i == 0:
		case strings.ContainsRune(" \u00a0\u202f-\u2010\u2011./()", c):
		default:
			return false
		}
	}
	return true
}

// IsRegion reports whether a text is a country with a numbering plan, such as DE.
func IsRegion(text string) bool { return phonenumbers.GetSupportedRegions()[text] }

// Some mobile numbers have two valid spellings, which reach the same device. Those of
// Argentina have a 9 after the country code, which only callers from other countries dial.
// Those of Brazil have a 9 before their eight digits since 2016. WhatsApp reports them
// without it, which is valid if they begin with 7: trunked radio had such numbers until 2018.
var (
	longArgentine = regexp.MustCompile(`^\+549(\d{10})$`)
	argentine     = regexp.MustCompile(`^\+54(\d{10})$`)
	shortBrazil   = regexp.MustCompile(`^\+55(\d\d)(7\d{7})$`)
	brazilian     = regexp.MustCompile(`^\+55(\d\d)9(7\d{7})$`)
)

// canonicalPhone returns the form of a number in E.164 by which numbers are compared: without
// the 9 of a mobile number of Argentina, and with that of Brazil, unless no numbering plan
// allows that.
func canonicalPhone(number string) string {
	other := number
	switch {
	case strings.HasPrefix(number, "+549"):
		other = longArgentine.ReplaceAllString(number, "+54$1")
	case strings.HasPrefix(number, "+55"):
		other = shortBrazil.ReplaceAllString(number, "+55${1}9$2")
	}
	if other == number {
		return number
	}
	if canonical, ok := Phone(other, ""); ok {
		return canonical
	}
	return number
}

// PhoneForms returns the texts in E.164 that have a canonical form: two for a number of
// Argentina and for some of Brazil, one for any other.
func PhoneForms(canonical string) []string {
	for form, other := range map[*regexp.Regexp]string{argentine: "+549$1", brazilian: "+55$1$2"} {
		if form.MatchString(canonical) {
			return []string{canonical, form.ReplaceAllString(canonical, other)}
		}
	}
	return []string{canonical}
}

package address

import (
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

// The mobile numbers of Argentina have a 9 after the country code, which only callers from
// other countries dial. A message reaches the same device with the 9 and without it.
const (
	argentina       = "+54"
	argentineMobile = "+549"
	argentineDigits = 10 // of a number after the country code and the 9
)

// canonicalPhone returns the form of a number in E.164 by which numbers are compared: without
// the 9 of a mobile number of Argentina, unless no numbering plan allows that.
func canonicalPhone(number string) string {
	rest, ok := strings.CutPrefix(number, argentineMobile)
	if !ok || len(rest) != argentineDigits {
		return number
	}
	if short, valid := Phone(argentina+rest, ""); valid {
		return short
	}
	return number
}

// PhoneForms returns the texts in E.164 that have a canonical form: two for a number of
// Argentina, one for any other.
func PhoneForms(canonical string) []string {
	rest, ok := strings.CutPrefix(canonical, argentina)
	if !ok || len(rest) != argentineDigits {
		return []string{canonical}
	}
	return []string{canonical, argentineMobile + rest}
}

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

package sender

import (
	"strings"
	"unicode/utf8"
)

const mostDetail = 200

// Detail is a carrier's text as a receipt has it: on one line, at most 200 bytes,
// without the recipient's address and without control characters.
func Detail(text, address string) string {
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

// blank removes an address from a text, in any case.
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

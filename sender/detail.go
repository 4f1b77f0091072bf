package sender

import (
	"strings"
	"unicode/utf8"

	"lemma/sender/redact"
)

const mostDetail = 200

// Detail is a carrier's text as a receipt has it: on one line, at most 200 bytes, without
// the secrets of the account, the recipient's address and control characters.
//
// The secrets are searched first, in the whole text: a secret is not recognised when a part
// of it is cut off or blanked as an address. They are searched again when the line is
// made, since a server may have folded a secret that has a blank. secrets may be nil for a
// text of Lemma itself.
func Detail(secrets *redact.Secrets, text, address string) string {
	text = secrets.Text(text)
	line := strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == utf8.RuneError {
			return ' '
		}
		return r
	}, text)), " ")
	if line != text {
		line = secrets.Text(line)
	}
	text = strings.TrimSpace(blank(line, address))
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

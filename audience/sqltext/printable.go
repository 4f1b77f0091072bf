package sqltext

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxMessage is the longest text of Printable, in bytes.
const maxMessage = 500

// Printable returns a message or a name of a source as one valid line of bounded length.
func Printable(message string) string {
	message = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(message, "\uFFFD"))
	if len(message) > maxMessage {
		cut := maxMessage
		for !utf8.RuneStart(message[cut]) {
			cut--
		}
		message = message[:cut] + "…"
	}
	return message
}

// Place converts an offset in characters, from 1, to line and column.
func Place(sql string, offset int) (line, column int) {
	if offset < 1 {
		return 0, 0
	}
	line, column = 1, 1
	for _, r := range sql {
		if offset--; offset == 0 {
			break
		}
		column++
		if r == '\n' {
			line, column = line+1, 1
		}
	}
	return line, column
}

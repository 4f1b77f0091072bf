package sqltext

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxMessage is the longest text of Printable, in bytes.
const maxMessage = 500

// Printable returns a message or a name of a source as one valid line of bounded length.
func Printable(message string) string {
	long := len(message) > 8*maxMessage
	if long { // the rest is not looked at: it takes time
		message = message[:8*maxMessage]
	}
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
		message, long = message[:cut], true
	}
	if long {
		message += "…"
	}
	return message
}

// ends matches what could end a statement, or run a command of psql or mysql (\! for example).
// The wildcards of grants of MySQL (shop\_2.*) are none.
var ends = regexp.MustCompile(`\\[^_%]|\\$|;|--|/\*|…$`)

// takes matches statements that take privileges away.
var takes = regexp.MustCompile(`^(revoke |alter role ("[^"]*"|\S+) nosuperuser |` +
	`alter (table|schema|database|function) .+ owner to )`)

// Statement returns a statement for an administrator of a source, made of what the source
// returned, as one line. It returns nothing for one that is not safe to run, or too long.
func Statement(text string) string {
	text = Printable(text)
	if ends.MatchString(text) || !takes.MatchString(text) {
		return ""
	}
	return text
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

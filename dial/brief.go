package dial

import (
	"strings"
	"unicode"
)

// mostBrief is the most bytes of Brief.
const mostBrief = 300

// Brief is an error of a connection for the log: one line of at most 300 bytes. Package net/http
// quotes there what a server has sent, which may be 64 KiB.
func Brief(err error) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	cut := len(text) > mostBrief
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(text[:min(len(text), mostBrief)], "?"))
	if cut {
		text += "..."
	}
	return text
}

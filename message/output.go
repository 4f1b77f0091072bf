package message

import (
	"bytes"
	"strconv"
	"strings"
	"unicode"
)

// output is the text that is written. It trims white space like the engine, which
// trims only the text of its last write, from trimFrom.
type output struct {
	text     []byte
	trimFrom int
	trim     bool
	work     int // of the fast path
}

func (p *output) write(s string) {
	if p.trim {
		s = strings.TrimLeftFunc(s, unicode.IsSpace)
		p.trim = false
	} else {
		p.trimFrom = len(p.text)
	}
	p.text = append(p.text, s...)
}

// writeInt needs neither trimming nor escaping.
func (p *output) writeInt(n int) {
	p.write("")
	p.text = strconv.AppendInt(p.text, int64(n), 10)
}

// writeEscaped writes in the same pieces as the engine: the runs between
// escaped characters, and each escape.
func (p *output) writeEscaped(s string) {
	from := 0
	for i := range len(s) {
		escape := escapes[s[i]]
		if escape == "" {
			continue
		}
		if i > from {
			p.write(s[from:i])
		}
		p.write(escape)
		from = i + 1
	}
	if from < len(s) {
		p.write(s[from:])
	}
}

var escapes = [256]string{'&': "&amp;", '\'': "&#39;", '<': "&lt;", '>': "&gt;", '"': "&#34;"}

func (p *output) trimLeft() {
	kept := bytes.TrimRightFunc(p.text[p.trimFrom:], unicode.IsSpace)
	p.text = p.text[:p.trimFrom+len(kept)]
	p.trimFrom = len(p.text)
}

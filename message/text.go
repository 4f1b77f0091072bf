package message

import (
	"strings"
	"unicode/utf8"

	"github.com/osteele/liquid/parser"

	"lemma"
)

// complete makes the text from the HTML if there is none, and reports whether it
// did. It is called when a version is saved, so that the stored text is sent.
// It makes none from HTML that Check refuses for its length, its encoding, or the time that it takes.
func complete(c Content) (Content, bool) {
	if c.Text != "" || c.HTML == "" || c.channel() != lemma.Email {
		return c, false
	}
	if len(c.HTML) <= MaxSource && utf8.ValidString(c.HTML) && !isSlowToScan(c.HTML) {
		c.Text = textOf(c.HTML)
	}
	return c, true
}

// textOf removes the markup and keeps the Liquid: a placeholder replaces each {{ }}
// and {% %}, since a "<" in a condition is not markup.
func textOf(html string) string {
	var liquid []string
	var b strings.Builder
	for _, token := range parser.Scan(html, parser.SourceLoc{}, nil) {
		if token.Type == parser.TextTokenType || token.Source == "" {
			b.WriteString(token.Source)
			continue
		}
		b.WriteString(placeholder(len(liquid)))
		liquid = append(liquid, token.Source)
	}
	return plainText(b.String(), liquid)
}

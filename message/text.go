package message

import (
	"strings"
	"unicode/utf8"

	"github.com/osteele/liquid/parser"
)

// complete makes the text from the HTML when there is none, and tells whether
// it did. It is done when a version is saved: what is stored is what is sent.
// It makes none from HTML that Check refuses for its length or its encoding.
func complete(c Content) (Content, bool) {
	if c.Text != "" || c.HTML == "" {
		return c, false
	}
	if len(c.HTML) <= MaxSource && utf8.ValidString(c.HTML) {
		c.Text = textOf(c.HTML)
	}
	return c, true
}

// textOf takes the markup away and leaves the Liquid as it is: each {{ }} and
// {% %} is put aside, since a "<" in a condition is not markup.
func textOf(html string) string {
	var aside []string
	var b strings.Builder
	for _, token := range parser.Scan(html, parser.SourceLoc{}, nil) {
		if token.Type == parser.TextTokenType || token.Source == "" {
			b.WriteString(token.Source)
			continue
		}
		b.WriteString(placeholder(len(aside)))
		aside = append(aside, token.Source)
	}
	return plainText(b.String(), aside)
}

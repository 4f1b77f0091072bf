package message

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/k3a/html2text"
	"github.com/osteele/liquid/parser"
)

// complete makes the text from the HTML if there is none, and reports whether it
// did. It is called when a version is saved, so that the stored text is sent.
func complete(c Content) (Content, bool) {
	if c.Text != "" || c.HTML == "" {
		return c, false
	}
	c.Text = textOf(c.HTML)
	return c, true
}

var (
	htmlComment = regexp.MustCompile(`(?s)<!--.*?-->`)
	emptyLines  = regexp.MustCompile(`\n[ \t]*(\n[ \t]*)+`)
	placeholder = regexp.MustCompile("\uE000([0-9]+)\uE001")
)

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
		fmt.Fprintf(&b, "\uE000%d\uE001", len(liquid))
		liquid = append(liquid, token.Source)
	}
	plain := html2text.HTML2TextWithOptions(htmlComment.ReplaceAllString(b.String(), ""),
		html2text.WithUnixLineBreaks(), html2text.WithLinksInnerText(), html2text.WithListSupport())
	plain = emptyLines.ReplaceAllString(strings.TrimSpace(plain), "\n\n")
	return placeholder.ReplaceAllStringFunc(plain, func(p string) string {
		n, err := strconv.Atoi(placeholder.FindStringSubmatch(p)[1])
		if err != nil || n >= len(liquid) {
			return p
		}
		return liquid[n]
	})
}

package message

import (
	"strings"
	"unicode/utf8"

	"github.com/osteele/liquid/parser"
)

// segment is a part of a template: a text, a {{ }} or a {% %}.
type segment struct {
	parser.Token
	at   int // byte offset in the source
	args int // byte offset of the arguments in the source
}

// scan splits a template like the engine. It omits comments and raw blocks. open is
// a comment or raw block that is not closed, which the engine closes at the end.
func scan(source string) (segments []segment, open *segment) {
	at := 0
	for _, token := range parser.Scan(source, parser.SourceLoc{LineNo: 1}, nil) {
		m := segment{Token: token, at: at}
		at += len(token.Source)
		switch {
		case token.Source == "": // the dash of {{-, which belongs to its neighbour
		case open != nil:
			if token.Type == parser.TagTokenType && token.Name == "end"+open.Name {
				open = nil
			}
		case token.Type == parser.TagTokenType && (token.Name == "comment" || token.Name == "raw"):
			open = &m
		default:
			m.args = m.at + argsOffset(token)
			segments = append(segments, m)
		}
	}
	return segments, open
}

func argsOffset(t parser.Token) int {
	from := 0
	if t.Type == parser.TagTokenType {
		from = strings.Index(t.Source, t.Name) + len(t.Name)
	}
	return from + max(strings.Index(t.Source[from:], t.Args), 0)
}

// withOwnTags adds stepTag to every loop, needTag before segments that need members,
// and partFilter to the right sides of contains. It adds no line, so that the line numbers of the engine stay correct.
func withOwnTags(source string) string {
	segments, _ := scan(source)
	var b strings.Builder
	from := 0
	put := func(at int, tag string) {
		b.WriteString(source[from:at])
		b.WriteString(tag)
		from = at
	}
	for _, m := range segments {
		if need := needBefore(m); need != "" {
			put(m.at, need)
		}
		if m.Type != parser.TextTokenType {
			for _, e := range partsOf(m) {
				put(e.at, e.text)
			}
		}
		if m.Type == parser.TagTokenType && m.Name == "for" {
			put(m.at+len(m.Source), "{% "+stepTag+" %}")
		}
	}
	b.WriteString(source[from:])
	return b.String()
}

// position turns a byte offset into line and column, both from 1; columns
// count characters.
func position(source string, at int) (line, column int) {
	before := source[:min(at, len(source))]
	start := strings.LastIndexByte(before, '\n') + 1
	return strings.Count(before, "\n") + 1, utf8.RuneCountInString(before[start:]) + 1
}

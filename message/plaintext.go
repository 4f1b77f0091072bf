package message

import (
	"bytes"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/html"
)

// plainText converts HTML to plain text in one pass, so its time is linear in the
// length of the source. Paragraphs and headings are separated by an empty line, other
// blocks by a line break. The address of a link follows its text as <address>.
//
// A placeholder in the source stands for an element of liquid, which is copied as it is.
func plainText(source string, liquid []string) string {
	p := plainWriter{liquid: liquid}
	tokens := html.NewTokenizer(strings.NewReader(source))
	for {
		switch tokens.Next() {
		case html.ErrorToken: // the end: a strings.Reader has no other error
			p.endLink()
			return strings.TrimSpace(string(p.text))
		case html.TextToken:
			if p.skipped == "" {
				p.write(string(tokens.Text()))
			}
		case html.StartTagToken, html.SelfClosingTagToken:
			p.start(tokens)
		case html.EndTagToken:
			name, _ := tokens.TagName()
			p.end(string(name))
		}
	}
}

// quote begins and ends a placeholder, with an index between. The byte occurs in no
// UTF-8, and no entity stands for it, so a source cannot contain a placeholder.
const quote = "\xff"

func placeholder(index int) string { return quote + strconv.Itoa(index) + quote }

// plainWriter writes plain text.
type plainWriter struct {
	text    []byte
	liquid  []string
	breaks  int    // line breaks before the next text
	bullet  bool   // the last of text is the bullet of a list item
	skipped string // the element whose content is skipped
	href    string // of the open link
}

// skippedElements have no content that a reader sees.
var skippedElements = map[string]bool{"head": true, "script": true, "style": true, "title": true, "template": true,
	"iframe": true, "noembed": true, "noframes": true}

// blockBreaks are the line breaks before and after an element.
var blockBreaks = map[string]int{"p": 2, "h1": 2, "h2": 2, "h3": 2, "h4": 2, "h5": 2, "h6": 2,
	"address": 1, "article": 1, "aside": 1, "blockquote": 1, "center": 1, "dd": 1, "div": 1, "dl": 1, "dt": 1, "fieldset": 1, "figcaption": 1,
	"figure": 1, "footer": 1, "form": 1, "header": 1, "hr": 1, "main": 1, "nav": 1, "ol": 1, "pre": 1, "section": 1, "table": 1,
	"tr": 1, "ul": 1}

func (p *plainWriter) start(tokens *html.Tokenizer) {
	tag, attributes := tokens.TagName()
	name := string(tag)
	if p.skipped == "head" && name == "body" { // which ends a head that has no end tag
		p.skipped = ""
	}
	switch {
	case p.skipped != "":
	case skippedElements[name]:
		p.skipped = name
	case name == "li":
		p.breaks = max(p.breaks, 1)
		p.startLine()
		p.text, p.bullet = append(p.text, " - "...), true
	case name == "br":
		p.breaks = min(p.breaks+1, 2)
	case name == "td" || name == "th":
		p.space()
	case name == "a":
		p.endLink()
		if attributes {
			p.startLink(tokens)
		}
	default:
		p.block(name)
	}
}

func (p *plainWriter) end(name string) {
	switch {
	case p.skipped != "":
		if name == p.skipped {
			p.skipped = ""
		}
	case name == "a":
		p.endLink()
	default:
		p.block(name)
	}
}

// block requests the line breaks of an element. A block that begins a list item
// stays on the line of the bullet.
func (p *plainWriter) block(name string) {
	if !p.bullet {
		p.breaks = max(p.breaks, blockBreaks[name])
	}
}

func (p *plainWriter) startLink(tokens *html.Tokenizer) {
	for more := true; more; {
		var key, value []byte
		key, value, more = tokens.TagAttr()
		if string(key) == "href" && p.href == "" {
			p.href = strings.TrimSpace(string(value))
		}
	}
	if script := "javascript:"; len(p.href) >= len(script) && strings.EqualFold(p.href[:len(script)], script) {
		p.href = ""
	}
	if p.href != "" {
		p.startLine()
	}
}

// endLink writes the address behind the text of a link, before the line breaks that
// follow the text.
func (p *plainWriter) endLink() {
	if p.href == "" {
		return
	}
	p.space()
	p.text = append(append(append(p.text, '<'), p.resolved(p.href)...), '>')
	p.href, p.bullet = "", false
}

// startLine writes the line breaks that were requested.
func (p *plainWriter) startLine() {
	if p.breaks > 0 && len(p.text) > 0 {
		p.text = bytes.TrimRight(p.text, " ")
		for n := len(p.text) - len(bytes.TrimRight(p.text, "\n")); n < p.breaks; n++ {
			p.text = append(p.text, '\n')
		}
	}
	p.breaks = 0
}

func (p *plainWriter) space() {
	if n := len(p.text); n > 0 && p.text[n-1] != ' ' && p.text[n-1] != '\n' {
		p.text = append(p.text, ' ')
	}
}

// write writes a text, with one space for each run of white space.
func (p *plainWriter) write(s string) {
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case s[i] == quote[0]:
			size = p.writeLiquid(s[i:])
		case isSpace(r):
			if p.breaks == 0 {
				p.space()
			}
		default:
			p.startLine()
			p.text, p.bullet = append(p.text, s[i:i+size]...), false
		}
		i += size
	}
}

// writeLiquid writes what the placeholder at the beginning of s stands for, and
// returns the length of the placeholder.
func (p *plainWriter) writeLiquid(s string) int {
	size := len(s)
	if end := strings.Index(s[1:], quote); end >= 0 {
		size = end + 2
	}
	p.startLine()
	p.text, p.bullet = append(p.text, p.resolved(s[:size])...), false
	return size
}

// resolved replaces placeholders by what they stand for.
func (p *plainWriter) resolved(s string) string {
	parts := strings.Split(s, quote)
	for i := 1; i < len(parts); i += 2 {
		if n, err := strconv.Atoi(parts[i]); err == nil && n < len(p.liquid) {
			parts[i] = p.liquid[n]
		}
	}
	return strings.Join(parts, "")
}

// isSpace reports whether a run of r is written as one space. A no-break space is not.
func isSpace(r rune) bool {
	return r <= ' ' || r == 0x85 || r == 0x2028 || r == 0x2029 || r >= 0x2008 && r <= 0x200B
}

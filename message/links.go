package message

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/osteele/liquid/parser"
	"golang.org/x/net/html"
)

// Fillers replace the Liquid of a template while its markup is read. They have the same
// length as the Liquid and occur in no UTF-8.
const (
	outputFiller  = '\xff' // {{ }}
	controlFiller = '\xfe' // {% %}
)

// span is a part of the source.
type span struct{ from, to int }

// link is the value of an href.
type link struct {
	span
	bare bool // without quotes
}

// linksOf finds the values of href of <a> and <area> that may be links to the web, and
// where the pixel belongs: before </body>, or at the end.
func linksOf(source string) (links []link, pixel int) {
	plain, depths := withoutLiquid(source)
	tokens := html.NewTokenizer(bytes.NewReader(plain))
	pixel, at := -1, 0
	for {
		kind := tokens.Next()
		raw := tokens.Raw()
		switch kind {
		case html.ErrorToken: // the end: a bytes.Reader has no other error
			if pixel < 0 {
				pixel = len(source)
			}
			return links, pixel
		case html.StartTagToken, html.SelfClosingTagToken:
			if name, _ := tokens.TagName(); string(name) == "a" || string(name) == "area" {
				found := hrefs(plain, span{at, at + len(raw)}, depths)
				links = append(links, slices.DeleteFunc(found, func(l link) bool { return isUnsubscribe(source[l.from:l.to]) })...)
			}
		case html.EndTagToken:
			if name, _ := tokens.TagName(); string(name) == "body" && pixel < 0 && depths[at] == 0 {
				pixel = at
			}
		}
		at += len(raw)
	}
}

// isUnsubscribe reports whether a value is UnsubscribeURL, which is never tracked.
func isUnsubscribe(value string) bool {
	name, ok := strings.CutPrefix(strings.Trim(value, htmlSpace), "{{")
	name, closed := strings.CutSuffix(name, "}}")
	return ok && closed && strings.Trim(name, htmlSpace+"-") == UnsubscribeURL
}

// withoutLiquid replaces Liquid by fillers. depths has for each byte the number of open
// blocks. Between two branches of a block, such as at {% else %}, it is not open.
func withoutLiquid(source string) (plain []byte, depths []int32) {
	plain, depths = []byte(source), make([]int32, len(source)+1)
	at, depth := 0, int32(0)
	for _, t := range parser.Scan(source, parser.SourceLoc{}, nil) {
		own, next := depth, depth
		if t.Type != parser.TextTokenType && t.Source != "" {
			filler := byte(outputFiller)
			if t.Type == parser.TagTokenType {
				filler = controlFiller
				next = max(0, depth+nesting(t.Name))
				if t.Name == "else" || t.Name == "elsif" || t.Name == "when" {
					own = depth - 1
				}
			}
			copy(plain[at:], bytes.Repeat([]byte{filler}, len(t.Source)))
		}
		for i := range len(t.Source) {
			depths[at+i] = own
		}
		at, depth = at+len(t.Source), next
	}
	depths[len(source)] = depth
	return plain, depths
}

// nesting is what a tag adds to the number of open blocks.
func nesting(tag string) int32 {
	switch tag {
	case "if", "unless", "case", "for", "comment", "raw":
		return 1
	case "endif", "endunless", "endcase", "endfor", "endcomment", "endraw":
		return -1
	}
	return 0
}

// hrefs are the links of one tag.
func hrefs(plain []byte, tag span, depths []int32) (links []link) {
	for _, a := range attributesOf(plain, tag) {
		value := string(plain[a.value.from:a.value.to])
		switch a.name {
		case "data-lemma-track":
			if strings.EqualFold(strings.TrimSpace(value), "off") {
				return nil
			}
		case "href":
			if mayLink(value, a.bare) && closed(a.value, depths) {
				links = append(links, link{a.value, a.bare})
			}
		}
	}
	return links
}

// mayLink leaves out what never becomes a link to the web, and values without quotes
// that Liquid may end.
func mayLink(value string, bare bool) bool {
	value = strings.TrimSpace(value)
	if value == "" || bare && (strings.IndexByte(value, outputFiller) >= 0 || strings.IndexByte(value, controlFiller) >= 0) {
		return false
	}
	if value[0] == outputFiller || value[0] == controlFiller {
		return true
	}
	head := strings.ToLower(value[:min(len(value), len("https:"))])
	head, _, _ = strings.Cut(head, "\xff")
	head, _, _ = strings.Cut(head, "\xfe")
	for _, scheme := range []string{"https:", "http:"} {
		if n := min(len(head), len(scheme)); head[:n] == scheme[:n] {
			return true
		}
	}
	return head[0] == '&' // an entity
}

// closed reports whether every block that begins in a value ends in it, so that both of
// its ends are rendered or neither.
func closed(value span, depths []int32) bool {
	open := depths[value.from]
	return depths[value.to] == open && slices.Min(depths[value.from:value.to]) == open
}

// attribute is an attribute of a tag, with its name in lower case and without Liquid.
type attribute struct {
	name  string
	value span
	bare  bool
}

const htmlSpace = " \t\n\r\f"

// attributesOf reads the attributes of a start tag as the HTML standard does (13.2.5.32).
func attributesOf(plain []byte, tag span) (all []attribute) {
	at, end := tag.from+1, tag.to
	skip := func(until func(byte) bool) span {
		from := at
		for at < end && !until(plain[at]) {
			at++
		}
		return span{from, at}
	}
	in := func(set string) func(byte) bool { return func(b byte) bool { return strings.IndexByte(set, b) >= 0 } }
	out := func(set string) func(byte) bool { return func(b byte) bool { return strings.IndexByte(set, b) < 0 } }
	skip(in(htmlSpace + "/>"))
	for at < end {
		skip(out(htmlSpace + "/"))
		if at >= end || plain[at] == '>' {
			break
		}
		begun := at
		at++ // a name may begin with =
		skip(in(htmlSpace + "/>="))
		a := attribute{name: nameOf(plain[begun:at])}
		skip(out(htmlSpace))
		if at < end && plain[at] == '=' {
			at++
			skip(out(htmlSpace))
			if at < end && (plain[at] == '"' || plain[at] == '\'') {
				quote := plain[at]
				at++
				a.value = skip(func(b byte) bool { return b == quote })
				at++
			} else {
				a.value, a.bare = skip(in(htmlSpace+">")), true
			}
		}
		if a.value.to <= end {
			all = append(all, a)
		}
	}
	return all
}

// nameOf removes the tags that precede or follow a name: {% if x %}href.
func nameOf(raw []byte) string {
	return strings.ToLower(string(bytes.ReplaceAll(raw, []byte{controlFiller}, nil)))
}

// marker is the text that surrounds links in a marked source. Data cannot contain it:
// NUL is refused, except before the random text of the marker.
type marker string

// The marks after a marker. Each has markBytes bytes.
const (
	linkMark  = 'l' // and the number of the link
	endMark   = 'e'
	pixelMark = 'p'

	numberBytes = 6
	markBytes   = 1 + numberBytes
)

func (m marker) mark(kind byte, number int) string {
	return fmt.Sprintf("%s%c%0*d", string(m), kind, numberBytes, number)
}

// marked is the source with marks around its links and for the pixel. urls are the links
// as they are written, by number.
func (m marker) marked(source string, t Track) (text string, urls []string) {
	links, pixel := linksOf(source)
	type insertion struct {
		at   int
		text string
	}
	var all []insertion
	if t.Clicks {
		for _, l := range links {
			all = append(all, insertion{l.from, m.mark(linkMark, len(urls))}, insertion{l.to, m.mark(endMark, 0)})
			urls = append(urls, source[l.from:l.to])
		}
	}
	if t.Opens {
		all = append(all, insertion{pixel, m.mark(pixelMark, 0)})
	}
	slices.SortStableFunc(all, func(a, b insertion) int { return a.at - b.at })
	var b strings.Builder
	from := 0
	for _, i := range all {
		b.WriteString(source[from:i.at])
		b.WriteString(i.text)
		from = i.at
	}
	b.WriteString(source[from:])
	return b.String(), urls
}

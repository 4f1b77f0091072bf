package message

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"net/url"
	"strings"

	"golang.org/x/net/html"

	"lemma"
)

// Choice decides whether something is tracked; empty: it depends on the message.
type Choice string

// The choices.
const (
	On  Choice = "on"
	Off Choice = "off"
)

// ChoiceOf is the choice of an optional boolean.
func ChoiceOf(b *bool) Choice {
	switch {
	case b == nil:
		return ""
	case *b:
		return On
	}
	return Off
}

// Bool is the choice as an optional boolean.
func (c Choice) Bool() *bool {
	if c == "" {
		return nil
	}
	on := c == On
	return &on
}

// Track is what of a message is tracked.
type Track struct{ Opens, Clicks bool }

// Tracks returns what the messages of a template track. What the template does not
// decide is tracked in marketing, and not in transactional messages. Only the HTML of
// an email is tracked.
func (c Content) Tracks(transactional bool) Track {
	if c.channel() != lemma.Email || c.HTML == "" {
		return Track{}
	}
	decide := func(choice Choice) bool { return choice == On || choice == "" && !transactional }
	return Track{decide(c.TrackOpens), decide(c.TrackClicks)}
}

// MaxTracked is the longest URL that is tracked, in bytes.
const MaxTracked = 2_000

// Tracking makes the links and the pixel of one message.
type Tracking struct {
	Click func(number int, url string) string // replaces a URL; "" leaves it
	Open  string                              // the URL of the pixel; empty: there is none
	Own   string                              // URLs that begin with it stay; empty: none

	// Left reports a link to the web that stays as it is since something is too long: the
	// reason is LongURL or LargeMessage.
	Left func(number int, reason string)
}

// Reasons why a link to the web is not tracked.
const (
	LongURL      = "long_url"      // longer than MaxTracked
	LargeMessage = "large_message" // it is one of the last links of a message longer than MaxRendered
)

// tracking is how the HTML of a compiled content is tracked.
type tracking struct {
	marker marker
	at     int // of the HTML in the parts
}

// Tracks returns what the messages of this content track.
func (c *Compiled) Tracks(transactional bool) Track { return c.content.Tracks(transactional) }

// Tracked returns the compiled content with its links and the pixel marked, for
// RenderTracked. It is itself if nothing is tracked.
func (c *Compiled) Tracked(t Track) (*Compiled, error) {
	if t == (Track{}) || c.content.HTML == "" {
		return c, nil
	}
	made, err := compileAll(c.workspace, c.content, c.variables, c.headers)
	if err != nil {
		return nil, err
	}
	defer compiling.Enter(c.workspace)()
	m := marker("\x00" + rand.Text()[:12])
	source, _ := m.marked(c.content.HTML, t)
	for i := range made.own {
		if made.parts[i].part != htmlPart {
			continue
		}
		p := htmlPart
		p.limit, p.marked = 2*MaxRendered, true
		root, err := p.compile(source)
		if err != nil {
			return nil, fmt.Errorf("compile tracked html: %w", err)
		}
		made.parts[i] = compiledPart{p, root, compileFast(p, root, made.variables)}
		made.bytes += len(source) - len(c.content.HTML)
		made.tracking = &tracking{m, i}
	}
	return made, nil
}

// Links are the links that Tracked replaces, as they are written. The index of a link is
// its number.
func (c *Compiled) Links() []string {
	defer compiling.Enter(c.workspace)()
	_, urls := marker("").marked(c.content.HTML, Track{Clicks: true})
	return urls
}

// fewLinks are tracked without a slot of processors: 200 take 0.1 ms, and 9,000 take 6.
const fewLinks = 200

// track replaces the marks of the rendered HTML.
func (c *Compiled) track(s *scratch, t Tracking) (err error) {
	if c.tracking == nil {
		return nil
	}
	if bytes.Count(s.marked.text, []byte{0}) > 2*fewLinks { // a link has two marks
		s.enter(c.workspace)
		defer s.leave()
	}
	at := c.tracking.at
	if s.output.text, err = c.tracking.marker.replace(s.output.text[:0], s.marked.text, t); err != nil {
		return failed(c.parts[at].pointer, 0, err)
	}
	s.texts[at] = string(s.output.text)
	return nil
}

// replace appends a text with the links and the pixel in place of their marks. A link without
// an end stays as it is. What makes the text longer than MaxRendered is left out.
func (m marker) replace(to, text []byte, t Tracking) ([]byte, error) {
	bare := 0
	pixels := 1
	for {
		at := bytes.IndexByte(text, 0)
		if at < 0 {
			break
		}
		to, bare = append(to, text[:at]...), bare+at
		kind, number, rest, ok := m.next(text[at:])
		if !ok {
			return to, refused("the rendered text contains a NUL")
		}
		text = rest
		if len(to) > MaxRendered {
			if kind == linkMark {
				t.leave(number, LargeMessage)
			}
			continue
		}
		switch kind {
		case linkMark:
			value, rest, ok := m.value(text)
			if made := t.click(number, value); ok && made != "" {
				to, bare = append(to, made...), bare+len(value)
				text = rest
			}
		case pixelMark:
			if t.Open != "" && pixels > 0 {
				to = append(append(append(to, `<img src="`...), t.Open...), `" width="1" height="1" alt="" style="border:0">`...)
				pixels--
			}
		}
	}
	to, bare = append(to, text...), bare+len(text)
	if bare > MaxRendered {
		return to, refused(fmt.Sprintf("the rendered text is longer than %d bytes", MaxRendered))
	}
	return to, nil
}

// next reads the mark at the beginning of a text.
func (m marker) next(text []byte) (kind byte, number int, rest []byte, ok bool) {
	if len(text) < len(m)+markBytes || string(text[:len(m)]) != string(m) {
		return 0, 0, nil, false
	}
	text = text[len(m):]
	for _, digit := range text[1:markBytes] {
		number = 10*number + int(digit-'0')
	}
	return text[0], number, text[markBytes:], true
}

// value is the text until the end of a link.
func (m marker) value(text []byte) (value, rest []byte, ok bool) {
	end := bytes.IndexByte(text, 0)
	if end < 0 {
		return nil, nil, false
	}
	kind, _, rest, ok := m.next(text[end:])
	return text[:end], rest, ok && kind == endMark
}

// click is what replaces the value of an href, escaped; "" leaves it.
func (t *Tracking) click(number int, value []byte) string {
	if t.Click == nil {
		return ""
	}
	to := strings.Trim(unescaped(string(value)), htmlSpace)
	if !isWeb(to) || t.Own != "" && strings.HasPrefix(to, t.Own) {
		return ""
	}
	if len(to) > MaxTracked {
		t.leave(number, LongURL)
		return ""
	}
	return html.EscapeString(t.Click(number, to))
}

// leave reports a link that stays as it is.
func (t *Tracking) leave(number int, reason string) {
	if t.Click != nil && t.Left != nil {
		t.Left(number, reason)
	}
}

// unescaped decodes the entities of an attribute. One without a semicolon, such as
// &copy=1, is text (HTML standard, 13.2.5.73).
func unescaped(value string) string {
	switch { // a tokenizer costs 9 µs
	case strings.IndexByte(value, '&') < 0:
		return value
	case strings.Count(value, "&") == strings.Count(value, "&amp;"):
		return strings.ReplaceAll(value, "&amp;", "&")
	case html.UnescapeString(value) == value: // in texts it decodes more than in attributes
		return value
	}
	tokens := html.NewTokenizer(strings.NewReader(`<a href="` + strings.ReplaceAll(value, `"`, "&#34;") + `">`))
	tokens.Next()
	tokens.TagName()
	_, decoded, _ := tokens.TagAttr()
	return string(decoded)
}

// isWeb reports whether a URL is absolute and of the web.
func isWeb(to string) bool {
	return isPlainWeb(to) || isParsedWeb(to) // url.Parse costs 200 ns
}

func isParsedWeb(to string) bool {
	if strings.ContainsFunc(to, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return false
	}
	scheme, _, _ := strings.Cut(to, ":")
	if scheme = strings.ToLower(scheme); scheme != "http" && scheme != "https" {
		return false
	}
	parsed, err := url.Parse(to)
	return err == nil && parsed.Host != ""
}

// isPlainWeb reports whether isWeb is true of a URL that consists of a host without a port and
// of ASCII without escapes.
func isPlainWeb(to string) bool {
	rest, ok := strings.CutPrefix(to, "https://")
	if !ok {
		rest, ok = strings.CutPrefix(to, "http://")
	}
	if !ok {
		return false
	}
	host := 0
	for host < len(rest) && isHost[rest[host]] {
		host++
	}
	if host == 0 || host < len(rest) && rest[host] != '/' && rest[host] != '?' && rest[host] != '#' {
		return false
	}
	for i := host; i < len(rest); i++ {
		if c := rest[i]; c <= ' ' || c >= 0x7f || c == '%' {
			return false
		}
	}
	return true
}

// isHost are the characters of the names of hosts.
var isHost = func() (is [256]bool) {
	for _, c := range []byte("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.") {
		is[c] = true
	}
	return is
}()

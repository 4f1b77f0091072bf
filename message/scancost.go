package message

import "strings"

// mostScanned is how many bytes the engine may read again to find the Liquid of a source. Each takes
// 50 to 250 ns.
const mostScanned = 512 << 10

// isSlowToScan reports whether a source takes too long to be split into its Liquid. The engine
// matches one expression again and again, each time from the end of the last match on. Before it
// accepts a match, it reads to the end of the line for a "{{" in front that is not closed there, and to
// the end of the source for a "{%" that is not closed. With very many of them, 250 KB take minutes.
func isSlowToScan(source string) bool { return scanned(source) > len(source)+mostScanned }

// scanned is how many bytes the engine reads to split a source, see isSlowToScan. It takes linear time.
func scanned(source string) (bytes int) {
	l := newLiquid(source)
	from, furthest := 0, 0 // of the present match
	for at := 0; at < len(source); {
		begin := strings.IndexByte(source[at:], '{')
		if begin < 0 {
			break
		}
		at += begin
		end, read, closed := l.end(at)
		furthest = max(furthest, read)
		if !closed {
			at++
			continue
		}
		bytes += furthest - from
		from, furthest, at = end, 0, end
	}
	return bytes + len(source) - from
}

// liquid finds the ends of what begins in a source, in the order of the beginnings.
type liquid struct {
	source            string
	output, tag, line finder
	after             int // the last end of a line
	blank             int // where the white space that follows it ends
	closing           int // the last "%}" that ends a tag
}

func newLiquid(source string) *liquid {
	return &liquid{source: source, output: finder{sub: "}}"}, tag: finder{sub: "%}"}, line: finder{sub: "\n"}}
}

// end is where what begins at a place ends, if it is closed, and how far the engine reads to know.
func (l *liquid) end(at int) (end, read int, closed bool) {
	switch {
	case strings.HasPrefix(l.source[at:], "{{"):
		return l.outputEnd(at)
	case strings.HasPrefix(l.source[at:], "{%"):
		return l.tagEnd(at)
	}
	return 0, at + 1, false
}

// outputEnd is end for `{{-?\s*(.+?)\s*-?}}`.
func (l *liquid) outputEnd(at int) (end, read int, closed bool) {
	content := at + 2
	if content < len(l.source) && l.source[content] == '-' {
		content++
	}
	content = l.skip(content)
	brace := l.output.from(l.source, content+1)
	line := l.line.from(l.source, content)
	if line != l.after || l.blank == 0 {
		l.after, l.blank = line, l.skip(line)
	}
	last := l.blank
	if last < len(l.source) && l.source[last] == '-' {
		last++
	}
	if brace < len(l.source) && (brace <= line || brace == l.blank || brace == last) {
		return brace + 2, brace + 2, true
	}
	read = min(last+2, len(l.source))
	isEmpty := strings.HasPrefix(l.source[content:], "}}") && strings.Trim(l.source[at+2:content], "\n") != ""
	return content + 2, read, isEmpty // the content is white space or a dash, if all else fails
}

// tagEnd is end for `{%-?\s*(\w+)(?:\s+((?:[^%]|%[^}])+?))?\s*-?%}`.
func (l *liquid) tagEnd(at int) (end, read int, closed bool) {
	name := at + 2
	if name < len(l.source) && l.source[name] == '-' {
		name++
	}
	name = l.skip(name)
	end = name
	for end < len(l.source) && isNameByte(l.source[end]) {
		end++
	}
	rest := l.source[end:]
	switch {
	case end == name || rest == "":
		return 0, min(end+1, len(l.source)), false
	case strings.HasPrefix(rest, "%}"):
		return end + 2, end + 2, true
	case strings.HasPrefix(rest, "-%}"):
		return end + 3, end + 3, true
	case !isBlank(rest[0]):
		return 0, end + 1, false
	}
	brace := l.tag.from(l.source, end)
	for brace < len(l.source) && brace != l.closing && l.percents(brace)%2 == 0 { // %% are characters of the tag
		brace = l.tag.from(l.source, brace+1)
	}
	l.closing = brace
	end = min(brace+2, len(l.source))
	return end, end, brace < len(l.source)
}

// percents is how many "%" are in a row up to a place.
func (l *liquid) percents(at int) (n int) {
	for n <= at && l.source[at-n] == '%' {
		n++
	}
	return n
}

func (l *liquid) skip(at int) int {
	for at < len(l.source) && isBlank(l.source[at]) {
		at++
	}
	return at
}

func isBlank(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\f' || c == '\r' }

func isNameByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_'
}

// finder finds a text from places on that do not decrease, in linear time for all of them.
type finder struct {
	sub   string
	found int // the last one
	began bool
}

func (f *finder) from(text string, at int) int {
	if f.began && f.found >= at {
		return f.found
	}
	f.began = true
	i := -1
	if at < len(text) {
		i = strings.Index(text[at:], f.sub)
	}
	if f.found = len(text); i >= 0 {
		f.found = at + i
	}
	return f.found
}

package redact

import (
	"encoding/base64"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// mostEscaped is how often a text may be escaped: JSON that an error quotes is escaped twice.
const mostEscaped = 2

// search adds the parts of a text that are to be removed, also where it is escaped. at is
// that of find, and compared counts with how many forms the text was compared.
func (f *forms) search(all spans, text string, at []int, deeper int, compared *int) spans {
	all = f.find(all, text, at, compared)
	if deeper == 0 || *compared > mostCompared {
		return all
	}
	for _, unescape := range views {
		plain, places := unescape(text)
		if places == nil {
			continue
		}
		for i, place := range places {
			if at != nil {
				places[i] = at[place]
			}
		}
		all = f.search(all, plain, places, deeper-1, compared)
	}
	return all
}

// find adds the parts of a text that are to be removed. at has the places in the original
// text of the bytes of one that was decoded, and of its end; nil: the text is the original.
// Beyond mostCompared that is all of the text.
func (f *forms) find(all spans, text string, at []int, compared *int) spans {
	var found spans
	for i := 0; i+4 <= len(text); i++ {
		first := word(text[i], text[i+1], text[i+2], text[i+3])
		if !f.mayBegin(first) {
			continue
		}
		if *compared += len(f.first[first]); *compared > mostCompared {
			found = spans{{0, len(text)}}
			break
		}
		for _, one := range f.first[first] {
			end := i + len(one.text)
			if n := len(found); n > 0 && found[n-1].from <= i && end <= found[n-1].to {
				continue // it is removed already: a text that repeats a secret costs no more
			}
			if !strings.HasPrefix(text[i:], one.text) {
				continue
			}
			if where, ok := one.at(text, i); ok {
				found = found.add(where)
			}
		}
	}
	for _, one := range found {
		if at != nil {
			one = span{at[one.from], at[one.to]}
		}
		all = append(all, one)
	}
	return all
}

// at is the part of a text to remove for a form at a place. Of base64 it is all of it.
func (f form) at(text string, i int) (where span, ok bool) {
	where = span{i, i + len(f.text)}
	if f.code == inHex && len(f.text) == mostEncoded {
		for where.to < len(text) && isHex(text[where.to]) {
			where.to++
		}
	}
	if f.code != inBase64 {
		return where, !f.isWord || isWord(text, where.from, where.to)
	}
	if f.isWord && !f.isWordInside(text, i) {
		return where, false
	}
	where = where.extended(text, len(text))
	for where.to < len(text) && text[where.to] == '=' {
		where.to++
	}
	return where, true
}

// extended is a part of a text with the characters of base64 next to it, at most so many on
// each side.
func (s span) extended(text string, most int) span {
	first, last := max(0, s.from-most), min(len(text), s.to+most)
	for s.from > first && isBase64(text[s.from-1]) {
		s.from--
	}
	for s.to < last && isBase64(text[s.to]) {
		s.to++
	}
	return s
}

// isWordInside reports whether a secret is a whole word of the text that base64 contains.
// It decodes only the neighbours.
func (f form) isWordInside(text string, i int) bool {
	run := span{i, i + len(f.text)}.extended(text, 12)
	from := i - firsts[f.before] // of the four characters in which the secret begins
	if from < run.from {
		return true // its beginning is cut off
	}
	to := min(from+(f.before+len(f.secret)+2)/3*4+4, run.to)
	at := f.before
	if from-4 >= run.from {
		from, at = from-4, at+3
	}
	encoded := toStandard.Replace(text[from:to])
	if len(encoded)%4 == 1 {
		encoded = encoded[:len(encoded)-1]
	}
	plain, err := base64.RawStdEncoding.DecodeString(encoded)
	return err != nil || len(plain) < at+len(f.secret) || isWord(string(plain), at, at+len(f.secret))
}

var toStandard = strings.NewReplacer("-", "+", "_", "/")

// isWord reports whether a part of a text is not a part of a word.
func isWord(text string, from, to int) bool {
	return (from == 0 || !isAlphanumeric(text[from-1]) || !isAlphanumeric(text[from])) &&
		(to == len(text) || !isAlphanumeric(text[to]) || !isAlphanumeric(text[to-1]))
}

func isAlphanumeric(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

func isHex(c byte) bool { return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F' }

func isBase64(c byte) bool { return isAlphanumeric(c) || c == '+' || c == '/' || c == '-' || c == '_' }

// views decode the escapes of a text: of a path, of a form, and of JSON. Without such an
// escape, at is nil.
var views = []func(text string) (plain string, at []int){
	func(text string) (string, []int) { return unescape(text, '%', percent) },
	func(text string) (string, []int) {
		if !strings.Contains(text, "+") {
			return "", nil // it is that of a path
		}
		spaced := strings.ReplaceAll(text, "+", " ") // of the same length
		if plain, at := unescape(spaced, '%', percent); at != nil {
			return plain, at
		}
		at := make([]int, len(text)+1)
		for i := range at {
			at[i] = i
		}
		return spaced, at
	},
	func(text string) (string, []int) { return unescape(text, '\\', backslash) },
}

// unescape decodes a text in which escapes begin with a byte. decode appends what an escape
// means, and returns its length, or 0 if it is none.
func unescape(text string, begin byte, decode func(out []byte, text string) ([]byte, int)) (plain string, at []int) {
	if strings.IndexByte(text, begin) < 0 {
		return "", nil
	}
	out := make([]byte, 0, len(text))
	at = make([]int, 0, len(text)+1)
	for i := 0; i < len(text); {
		n := 0
		if text[i] == begin {
			out, n = decode(out, text[i:])
		}
		if n == 0 {
			out, n = append(out, text[i]), 1
		}
		for len(at) < len(out) {
			at = append(at, i)
		}
		i += n
	}
	return string(out), append(at, len(text))
}

// percent decodes the escapes of URLs (RFC 3986, 2.1).
func percent(out []byte, text string) ([]byte, int) {
	code, ok := digits(text, 1, 2)
	if !ok {
		return out, 0
	}
	return append(out, byte(code)), 3
}

// backslash decodes the escapes of JSON (RFC 8259, 7), and \x, which Go writes.
func backslash(out []byte, text string) ([]byte, int) {
	if len(text) < 2 {
		return out, 0
	}
	if i := strings.IndexByte(`"\/bfnrt`, text[1]); i >= 0 {
		return append(out, "\"\\/\b\f\n\r\t"[i]), 2
	}
	if code, ok := digits(text, 2, 2); ok && text[1] == 'x' {
		return append(out, byte(code)), 4
	}
	code, ok := digits(text, 2, 4)
	if !ok || text[1] != 'u' {
		return out, 0
	}
	if next, ok := digits(text, 8, 4); ok && strings.HasPrefix(text[6:], `\u`) && utf16.IsSurrogate(code) {
		return utf8.AppendRune(out, utf16.DecodeRune(code, next)), 12
	}
	return utf8.AppendRune(out, code), 6
}

// digits is the number of n hexadecimal digits at a place.
func digits(text string, from, n int) (rune, bool) {
	if len(text) < from+n {
		return 0, false
	}
	code, err := strconv.ParseUint(text[from:from+n], 16, 32)
	return rune(code), err == nil
}

package mime

import (
	"encoding/base64"
	"errors"
	"regexp"
	"strings"
	"unicode/utf8"
)

// The length of a header's lines in bytes without CRLF: recommended and largest (RFC
// 5322, 2.1.1), and the length of an encoded word (RFC 2047, 2).
const (
	niceLine = 76
	longLine = 998
	longWord = 75
)

var errFieldLong = errors.New("a header has a word that is too long for a line")

// IsMailbox accepts what may stand between the angle brackets of MAIL and RCPT. It is
// stricter than RFC 5321: printable ASCII, one @, and nothing that could end the
// brackets, the line or the address.
func IsMailbox(s string) bool {
	at := 0
	for i := range len(s) {
		c := s[i]
		if c <= ' ' || c >= 0x7f || c == '<' || c == '>' || c == '"' || c == '\\' || c == ',' || c == ';' || c == '(' || c == ')' {
			return false
		}
		if c == '@' {
			at++
		}
	}
	return at == 1 && len(s) <= 254 && s[0] != '@' && s[len(s)-1] != '@'
}

// isFieldName accepts a field name (RFC 5322, 2.2): printable ASCII without a colon,
// at most 60 bytes.
func isFieldName(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f || s[i] == ':' {
			return false
		}
	}
	return s != "" && len(s) <= 60
}

// appendText writes an unstructured header, such as Subject: as plain ASCII if it is
// that, else in encoded words.
func appendText(out []byte, name, value string) []byte {
	out = append(out, name...)
	out = append(out, ':')
	if isPlain(value) {
		if all, ok := appendFolded(out, len(name)+1, value, niceLine); ok {
			return append(all, "\r\n"...)
		}
	}
	out = append(out, ' ')
	out, _ = appendWords(out, len(name)+2, value)
	return append(out, "\r\n"...)
}

// anyWord is what clients decode as an encoded word, some also between other characters.
var anyWord = regexp.MustCompile(`=\?[^?]*\?[bBqQ]\?[^?]*\?=`)

// appendField writes a header of the customer. It may have structure, as
// List-Unsubscribe has, so ASCII is only folded at its blanks. What reads as an encoded word
// is encoded, so that it arrives as it is, unless the value is a list of URLs.
func appendField(out []byte, name, value string) ([]byte, error) {
	value = strings.Trim(value, " \t")
	if !isASCII(value) || !strings.HasPrefix(value, "<") && anyWord.MatchString(value) {
		return appendText(out, name, value), nil
	}
	out = append(out, name...)
	out = append(out, ':')
	all, ok := appendFolded(out, len(name)+1, value, longLine)
	if !ok {
		return out, errFieldLong
	}
	return append(all, "\r\n"...), nil
}

// appendMailbox writes From or Reply-To: an optional name, and an address.
func appendMailbox(out []byte, field, name, address string) []byte {
	out = append(out, field...)
	out = append(out, ": "...)
	column := len(field) + 2
	if name == "" {
		out = append(out, address...)
		return append(out, "\r\n"...)
	}
	if isPlain(name) && len(name) <= niceLine/2 {
		start := len(out)
		out = appendQuotedString(out, name)
		column += len(out) - start
	} else {
		out, column = appendWords(out, column, name)
	}
	if column+len(address)+3 > niceLine {
		out = append(out, "\r\n"...)
	}
	out = append(out, " <"...)
	out = append(out, address...)
	return append(out, ">\r\n"...)
}

// appendQuotedString writes a display name (RFC 5322, 3.2.4).
func appendQuotedString(out []byte, name string) []byte {
	out = append(out, '"')
	for i := range len(name) {
		if name[i] == '"' || name[i] == '\\' {
			out = append(out, '\\')
		}
		out = append(out, name[i])
	}
	return append(out, '"')
}

// isPlain reports whether a text needs no encoding in a header: printable ASCII, no
// blank at its ends, nothing that reads as an encoded word.
func isPlain(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] >= 0x7f {
			return false
		}
	}
	return s == "" || (s[0] != ' ' && s[len(s)-1] != ' ' && !strings.Contains(s, "=?"))
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x7f || (s[i] < ' ' && s[i] != '\t') {
			return false
		}
	}
	return true
}

// appendFolded writes a blank and a value, folded at single blanks where a line would
// be too long. Unfolding restores the value. It is false when a line would be longer
// than most.
func appendFolded(out []byte, column int, value string, most int) ([]byte, bool) {
	out = append(out, ' ')
	column++
	for first := true; ; first = false {
		word := wordEnd(value)
		if !first && column+1+word > niceLine {
			out = append(out, "\r\n"...)
			column = 0
		}
		if !first {
			out = append(out, ' ')
			column++
		}
		if column+word > most {
			return out, false
		}
		out = append(out, value[:word]...)
		column += word
		if word == len(value) {
			return out, true
		}
		value = value[word+1:]
	}
}

// wordEnd is the first blank at which a line may be folded: one without a blank beside
// it, which unfolding would remove.
func wordEnd(s string) int {
	for i := 1; i+1 < len(s); i++ {
		if s[i] == ' ' && !isBlank(s[i-1]) && !isBlank(s[i+1]) {
			return i
		}
	}
	return len(s)
}

func isBlank(c byte) bool { return c == ' ' || c == '\t' }

const (
	wordOpenQ = "=?utf-8?q?"
	wordOpenB = "=?utf-8?b?"
	wordClose = "?="
)

// appendWords writes a text as RFC 2047 encoded words of at most 75 bytes without
// splitting a character, and returns the column of their end. Invalid UTF-8 becomes
// the replacement character.
func appendWords(out []byte, column int, text string) ([]byte, int) {
	text = strings.ToValidUTF8(text, "\uFFFD")
	base64 := 3*foreign(text) > len(text)
	for first := true; first || text != ""; first = false {
		if !first {
			out = append(out, "\r\n "...)
			column = 1
		}
		space := min(longWord, niceLine-column) - len(wordOpenQ) - len(wordClose)
		n := fitting(text, space, base64)
		start := len(out)
		out = appendWord(out, text[:n], base64)
		column += len(out) - start
		text = text[n:]
	}
	return out, column
}

// foreign counts the bytes that Q encoding writes as three.
func foreign(s string) int {
	n := 0
	for i := range len(s) {
		if !bare[s[i]] && s[i] != ' ' {
			n++
		}
	}
	return n
}

// fitting is how many bytes of a text fit the space, in whole characters and at least
// one.
func fitting(text string, space int, base64 bool) int {
	n, used := 0, 0
	for n < len(text) {
		_, size := utf8.DecodeRuneInString(text[n:])
		if base64 {
			used = (n + size + 2) / 3 * 4
		} else {
			used += size + 2*foreign(text[n:n+size])
		}
		if used > space && n > 0 {
			break
		}
		n += size
	}
	return n
}

func appendWord(out []byte, s string, b bool) []byte {
	if b {
		out = append(out, wordOpenB...)
		out = base64.StdEncoding.AppendEncode(out, []byte(s))
		return append(out, wordClose...)
	}
	out = append(out, wordOpenQ...)
	for i := range len(s) {
		switch c := s[i]; {
		case c == ' ':
			out = append(out, '_')
		case bare[c]:
			out = append(out, c)
		default:
			out = append(out, '=', digits[c>>4], digits[c&15])
		}
	}
	return append(out, wordClose...)
}

// bare are the bytes that a Q encoded word contains unencoded, also in a display name
// (RFC 2047, 5).
var bare = func() (t [256]bool) {
	for c := range t {
		t[c] = alphanumeric(byte(c)) || strings.IndexByte("!*+-/", byte(c)) >= 0
	}
	return t
}()

func alphanumeric(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

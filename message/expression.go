package message

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// kind is the kind of a word of an expression. The words are those of the engine's
// scanner; a test compares the two.
type kind uint8

const (
	name     kind = iota // first_name
	keyword              // limit: (a name with a colon: a filter with arguments, or a named argument)
	property             // .city
	literal              // "x", 'x', 1, 1.5, true, nil
	operator             // == != < > <= >= contains
	and
	or
	in
	dots        // ..
	punctuation // | , : ( ) [ ] =
)

// word is one word of an expression; at is its byte offset in the expression.
type word struct {
	kind  kind
	text  string // of a name, keyword, property: without colon and dot
	value value  // of a literal
	at    int
}

func (w word) is(text string) bool { return w.kind == punctuation && w.text == text }

// wrong is a fault at a byte offset.
type wrong struct {
	at     int
	code   string
	detail string
}

func syntaxf(format string, args ...any) *wrong {
	return &wrong{code: "syntax", detail: fmt.Sprintf(format, args...)}
}

// reserved are words with a meaning to the engine.
var reserved = map[string]word{
	"true":     {kind: literal, value: boolean(true)},
	"false":    {kind: literal, value: boolean(false)},
	"nil":      {kind: literal},
	"and":      {kind: and},
	"or":       {kind: or},
	"in":       {kind: in},
	"contains": {kind: operator, text: "contains"},
}

// split cuts an expression into words.
func split(source string) ([]word, *wrong) {
	var words []word
	for at := 0; at < len(source); {
		if strings.IndexByte(" \t\n\v\f\r", source[at]) >= 0 {
			at++
			continue
		}
		w, size, fault := next(source[at:])
		if fault != nil {
			fault.at += at
			return nil, fault
		}
		w.at = at
		words = append(words, w)
		at += size
	}
	return words, nil
}

// next reads the word that source begins with.
func next(source string) (word, int, *wrong) {
	c := source[0]
	switch {
	case c == '"' || c == '\'':
		return quoted(source)
	case isDigit(c), c == '-' && len(source) > 1 && isDigit(source[1]):
		return number(source)
	case startsName(source):
		return named(source)
	case c == '.' && startsName(source[1:]):
		return propertyOf(source)
	}
	for _, op := range []string{"==", "!=", ">=", "<=", "<", ">"} {
		if strings.HasPrefix(source, op) {
			return word{kind: operator, text: op}, len(op), nil
		}
	}
	if strings.HasPrefix(source, "..") {
		return word{kind: dots}, 2, nil
	}
	if strings.IndexByte("|,:()[]=", c) >= 0 {
		return word{kind: punctuation, text: source[:1]}, 1, nil
	}
	r, _ := utf8.DecodeRuneInString(source)
	return word{}, 0, syntaxf("%q has no meaning here", r)
}

// quoted reads a string; only between double quotes a backslash escapes.
func quoted(source string) (word, int, *wrong) {
	quote := source[0]
	for i := 1; i < len(source); i++ {
		switch {
		case source[i] == quote:
			raw := source[1:i]
			if quote == '"' {
				raw = unescape.Replace(raw)
			}
			return word{kind: literal, value: text(raw)}, i + 1, nil
		case source[i] == '\\' && quote == '"':
			i++
		}
	}
	return word{}, 0, syntaxf("the quote that opens here is not closed before }} or %%}")
}

// unescape has the escapes of the engine; other backslashes stay.
var unescape = strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\n`, "\n", `\t`, "\t", `\r`, "\r")

func number(source string) (word, int, *wrong) {
	end := digits(source, 1)
	whole := end
	if end+1 < len(source) && source[end] == '.' && isDigit(source[end+1]) {
		end = digits(source, end+2)
	}
	if end == whole {
		n, err := strconv.ParseInt(source[:end], 10, 64)
		if err != nil {
			return word{}, 0, syntaxf("the number is too large")
		}
		return word{kind: literal, value: integer(int(n))}, end, nil
	}
	f, err := strconv.ParseFloat(source[:end], 64)
	if err != nil {
		return word{}, 0, syntaxf("the number is too large")
	}
	return word{kind: literal, value: float(f)}, end, nil
}

func named(source string) (word, int, *wrong) {
	end := nameEnd(source)
	text := source[:end]
	if !validName(text) {
		return word{}, 0, syntaxf("%q is not a name; names have letters, digits, _ and -", text)
	}
	if end < len(source) && source[end] == ':' {
		return word{kind: keyword, text: text}, end + 1, nil
	}
	if w, ok := reserved[text]; ok {
		return w, end, nil
	}
	return word{kind: name, text: text}, end, nil
}

func propertyOf(source string) (word, int, *wrong) {
	end := 1 + nameEnd(source[1:])
	return word{kind: property, text: source[1:end]}, end, nil
}

func startsName(s string) bool {
	return s != "" && (s[0] == '_' || s[0] >= utf8.RuneSelf || isLetter(s[0]))
}

// nameEnd accepts every character that the engine's scanner accepts; validName
// checks the name.
func nameEnd(s string) int {
	end := 0
	for end < len(s) && (isLetter(s[end]) || isDigit(s[end]) || s[end] == '_' || s[end] == '-' && end > 0 || s[end] >= utf8.RuneSelf) {
		end++
	}
	if end < len(s) && s[end] == '?' {
		end++
	}
	return end
}

func validName(s string) bool {
	for i, r := range strings.TrimSuffix(s, "?") {
		inside := i > 0 && (unicode.IsDigit(r) || unicode.IsMark(r) || r == '-')
		if !unicode.IsLetter(r) && r != '_' && !inside {
			return false
		}
	}
	return true
}

func digits(s string, from int) int {
	for from < len(s) && isDigit(s[from]) {
		from++
	}
	return from
}

func isDigit(c byte) bool  { return c >= '0' && c <= '9' }
func isLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }

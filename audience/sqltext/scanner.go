package sqltext

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// scanner scans a text like the lexer of the source, so that literals and comments are
// not mistaken for SQL, or the reverse.
type scanner struct {
	kind     string
	sql      string
	pos      int
	start    int    // start of the current token
	previous string // the last word in lower case, if only space followed
	depth    int    // open parentheses
}

func (s *scanner) run() error {
	for s.pos < len(s.sql) {
		s.start = s.pos
		if err := s.token(); err != nil {
			return err
		}
	}
	if s.depth != 0 {
		return errors.New("a parenthesis is not closed")
	}
	return nil
}

func (s *scanner) token() error {
	rest, c := s.sql[s.pos:], s.sql[s.pos]
	switch {
	case c == ';':
		return errors.New("a semicolon: a query is one select, without a semicolon")
	case s.isLineComment(rest):
		s.toLineEnd()
	case strings.HasPrefix(rest, "/*"):
		return s.comment()
	case c == '\'', c == '"' && s.kind == MySQL:
		s.previous = ""
		return s.quoted(c, s.kind == MySQL)
	case c == '"', c == '`' && s.kind == MySQL:
		return s.quotedName(c)
	case c == '$' && s.kind == Postgres:
		s.previous = ""
		return s.dollar()
	case nameStart(c):
		return s.word()
	case c >= '0' && c <= '9':
		s.previous = ""
		s.number()
	case c == '(':
		return s.open()
	case c == ')':
		return s.close()
	default:
		if !s.isSpace(c) {
			s.previous = ""
		}
		s.pos++
	}
	return nil
}

// isSpace reports white space of both lexers. Postgres before 16 refuses the vertical tab.
func (s *scanner) isSpace(c byte) bool { return c == ' ' || c >= '\t' && c <= '\r' }

// number skips digits. In Postgres the characters after them begin another token
// ($tag$, E'...'); in MySQL a name may begin with digits.
func (s *scanner) number() {
	if s.kind == MySQL {
		s.skipName()
		return
	}
	for s.pos < len(s.sql) && s.sql[s.pos] >= '0' && s.sql[s.pos] <= '9' {
		s.pos++
	}
}

// isLineComment reports the beginning of a comment. In MySQL two dashes need a blank
// after them: in 5--1 they are arithmetic.
func (s *scanner) isLineComment(rest string) bool {
	if s.kind == Postgres {
		return strings.HasPrefix(rest, "--")
	}
	return rest[0] == '#' || strings.HasPrefix(rest, "--") && (len(rest) == 2 || rest[2] <= ' ' || rest[2] == 0x7f)
}

// toLineEnd skips a comment. A carriage return ends it in Postgres, but not in MySQL.
func (s *scanner) toLineEnd() {
	ends := "\n"
	if s.kind == Postgres {
		ends = "\r\n"
	}
	if i := strings.IndexAny(s.sql[s.pos:], ends); i >= 0 {
		s.pos += i
		return
	}
	s.pos = len(s.sql)
}

// comment skips a comment, which can be nested in Postgres. It refuses MySQL's
// comments that are executed (/*! and /*M!).
func (s *scanner) comment() error {
	rest := s.sql[s.pos:]
	if s.kind == MySQL && (strings.HasPrefix(rest, "/*!") || strings.HasPrefix(rest, "/*M!") || strings.HasPrefix(rest, "/*+")) {
		return errors.New("a comment that is executed or gives hints")
	}
	depth := 0
	for i := 0; i+1 < len(rest); i++ {
		switch {
		case rest[i] == '/' && rest[i+1] == '*' && (depth == 0 || s.kind == Postgres):
			depth++
			i++
		case rest[i] == '*' && rest[i+1] == '/':
			depth--
			i++
			if depth == 0 {
				s.pos += i + 1
				return nil
			}
		}
	}
	return errors.New("a comment is not closed")
}

// quoted skips a literal. A doubled quote does not end it, nor, with escapes, one after a backslash.
func (s *scanner) quoted(quote byte, escapes bool) error {
	for i := s.pos + 1; i < len(s.sql); i++ {
		switch {
		case s.sql[i] == '\\' && escapes:
			i++
		case s.sql[i] == quote && i+1 < len(s.sql) && s.sql[i+1] == quote:
			i++
		case s.sql[i] == quote:
			s.pos = i + 1
			return nil
		}
	}
	return errors.New("a quote is not closed")
}

// escapes skips an E'...' literal. Postgres continues a literal after a line break,
// and then the second part has escapes too.
func (s *scanner) escapes() error {
	if err := s.quoted('\'', true); err != nil {
		return err
	}
	next := *s
	for next.pos < len(next.sql) && (next.isSpace(next.sql[next.pos]) || next.isLineComment(next.sql[next.pos:])) {
		if err := next.token(); err != nil {
			return err
		}
	}
	if strings.HasPrefix(next.sql[next.pos:], "'") {
		return errors.New("an E'...' literal that is continued: write it as one")
	}
	return nil
}

func (s *scanner) quotedName(quote byte) error {
	from := s.pos + 1
	if err := s.quoted(quote, false); err != nil {
		return err
	}
	s.previous = strings.ReplaceAll(s.sql[from:s.pos-1], string([]byte{quote, quote}), string(quote))
	if s.kind == MySQL { // names of functions are case-insensitive, quoted or not
		s.previous = strings.ToLower(s.previous)
	}
	return nil
}

// dollar skips $tag$ … $tag$. A $1 is left to the source, which counts parameters.
func (s *scanner) dollar() error {
	rest := s.sql[s.pos+1:]
	n := 0
	for n < len(rest) && (nameStart(rest[n]) || n > 0 && rest[n] >= '0' && rest[n] <= '9') {
		n++
	}
	if n >= len(rest) || rest[n] != '$' {
		s.pos++
		return nil
	}
	tag := "$" + rest[:n+1]
	body := s.pos + len(tag)
	end := strings.Index(s.sql[body:], tag)
	if end < 0 {
		return fmt.Errorf("a quote %s is not closed", Printable(tag))
	}
	s.pos = body + end + len(tag)
	return nil
}

func nameStart(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || c >= 0x80
}

func (s *scanner) skipName() {
	for s.pos < len(s.sql) {
		c := s.sql[s.pos]
		if !nameStart(c) && (c < '0' || c > '9') && c != '$' {
			return
		}
		s.pos++
	}
}

func (s *scanner) word() error {
	s.skipName()
	word := strings.ToLower(s.sql[s.start:s.pos])
	if s.kind == Postgres && s.pos < len(s.sql) {
		switch rest := s.sql[s.pos:]; {
		case word == "e" && rest[0] == '\'':
			s.previous = ""
			return s.escapes()
		case word == "u" && (strings.HasPrefix(rest, `&"`) || strings.HasPrefix(rest, "&'")):
			return errors.New("a U& literal or name: write the characters themselves")
		}
	}
	if slices.Contains(deniedPairs, [2]string{s.previous, word}) {
		return fmt.Errorf("%s %s is not allowed in a query", s.previous, word)
	}
	s.previous = word
	return nil
}

func (s *scanner) open() error {
	if isDenied(s.kind, s.previous) {
		return fmt.Errorf("the function %s is not allowed in a query", Printable(s.previous))
	}
	s.depth++
	s.previous = ""
	s.pos++
	return nil
}

func (s *scanner) close() error {
	if s.depth--; s.depth < 0 {
		return errors.New("a parenthesis is closed that was not opened")
	}
	s.previous = ""
	s.pos++
	return nil
}

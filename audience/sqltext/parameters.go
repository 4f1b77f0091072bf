package sqltext

import "strings"

// Bind replaces the parameters of a text, :name, by their literals. Names that literal does
// not know stay as they are, and so do quoted texts and names, comments and casts (::). It
// is false for a text that Check refuses.
func Bind(kind, sql string, literal func(name string) (text string, known bool)) (bound string, ok bool) {
	s := scanner{kind: kind, sql: sql}
	var b strings.Builder
	for s.pos < len(sql) {
		from := s.pos
		if s.token() != nil {
			return sql, false
		}
		text, known := "", false
		if sql[from] == ':' {
			text, known = literal(s.parameter())
		}
		if !known {
			text = sql[from:s.pos]
		}
		b.WriteString(text)
	}
	return b.String(), true
}

// parameter skips what follows a colon that belongs to it: another colon, or a name, which
// it returns.
func (s *scanner) parameter() string {
	if s.pos == len(s.sql) {
		return ""
	}
	if s.sql[s.pos] == ':' {
		s.pos++
		return ""
	}
	from := s.pos
	if nameStart(s.sql[from]) {
		s.skipName()
	}
	return s.sql[from:s.pos]
}

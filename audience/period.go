package audience

import (
	"fmt"
	"strings"
	"time"
)

// Period bounds a query of Keys, which names its ends :started_at and :cut_off_at.
type Period struct{ StartedAt, CutOffAt time.Time }

// bound is a query whose parameters are replaced by literals. Literals, names and comments
// stay as they are, as do casts (::). The session's time zone is UTC.
func (p Period) bound(kind, sql string) (text string, cutOff bool) {
	values := map[string]time.Time{"started_at": p.StartedAt, "cut_off_at": p.CutOffAt}
	s := scanner{kind: kind, sql: sql}
	var b strings.Builder
	for s.pos < len(sql) {
		from := s.pos
		if s.token() != nil {
			return sql, false // checkText reports it
		}
		if sql[from] != ':' {
			b.WriteString(sql[from:s.pos])
			continue
		}
		name := s.parameter()
		at, known := values[name]
		if !known {
			b.WriteString(sql[from:s.pos])
			continue
		}
		cutOff = cutOff || name == "cut_off_at"
		b.WriteString(literal(kind, at))
	}
	return b.String(), cutOff
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

// literal writes a time in UTC, to the microsecond.
func literal(kind string, at time.Time) string {
	text := at.UTC().Format("2006-01-02 15:04:05.000000")
	if kind == Postgres {
		return fmt.Sprintf("timestamptz '%s+00'", text)
	}
	return fmt.Sprintf("timestamp '%s'", text)
}

// errUnbounded is the fault of a query that counts what happens after a cut-off.
func errUnbounded() error {
	return badQuery(0, 0, "the query must use :cut_off_at, such as bought_at < :cut_off_at: what happens later must not count")
}

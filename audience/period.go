package audience

import (
	"fmt"
	"time"

	"lemma/audience/sqltext"
)

// Period bounds a query of Keys, which names its ends :started_at and :cut_off_at.
type Period struct{ StartedAt, CutOffAt time.Time }

// bound is a query whose parameters are replaced by literals. The session's time zone is UTC.
func (p Period) bound(kind, sql string) (text string, cutOff bool) {
	text, ok := sqltext.Bind(kind, sql, func(name string) (string, bool) {
		switch name {
		case "started_at":
			return literal(kind, p.StartedAt), true
		case "cut_off_at":
			cutOff = true
			return literal(kind, p.CutOffAt), true
		}
		return "", false
	})
	return text, ok && cutOff // of other texts, checkText reports the fault
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

package sender

import (
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"lemma/notifications"
)

// Outcomes of attempts besides accepted and rejected.
const (
	refused = "refused" // not accepted as often as the cap of a row allows
	unknown = "unknown" // the reaper found no evidence
	skipped = "skipped" // ended before any call
)

// outcome is a row of attempts.
type outcome struct {
	ordinal   int16
	kind      string
	open      bool // not final: a second attempt follows
	basis     string
	reason    string
	code      int
	carrierID string
	detail    string
	at        time.Time // of a response, by the clock of the database; zero: that of the commit
}

// tally is what outcomes add to a batch's counters. The view notification_status
// derives the same; tests compare the two.
type tally struct {
	sent, failed, orphaned, skipped, retried int
}

func (t *tally) add(attempt int16, o *outcome) {
	switch {
	case o.open:
		t.retried++
	case o.kind == string(Accepted):
		t.sent++
	case o.reason == notifications.ReasonFirstRejected:
		t.failed++
	case o.kind == unknown || attempt == 2:
		t.orphaned++
	case o.kind == skipped:
		t.skipped++
	default:
		t.failed++
	}
}

// orphaned are the rows that outcomes of an attempt orphan.
func orphaned(attempt int16, done []outcome) (ordinals []int16) {
	for i, o := range done {
		var t tally
		if t.add(attempt, &done[i]); t.orphaned > 0 {
			ordinals = append(ordinals, o.ordinal)
		}
	}
	return ordinals
}

// columns are the columns of outcomes, as unnest takes them.
type columns struct {
	ordinals, codes                            []int16
	kinds, bases, reasons, carrierIDs, details []string
	times                                      []pgtype.Timestamptz
}

func outcomeColumns(done []outcome) columns {
	n := len(done)
	c := columns{ordinals: make([]int16, n), codes: make([]int16, n), kinds: make([]string, n), bases: make([]string, n),
		reasons: make([]string, n), carrierIDs: make([]string, n), details: make([]string, n), times: make([]pgtype.Timestamptz, n)}
	for i, o := range done {
		c.ordinals[i], c.codes[i], c.kinds[i], c.bases[i] = o.ordinal, int16(o.code), o.kind, o.basis
		c.reasons[i], c.carrierIDs[i], c.details[i] = clip(o.reason), clip(o.carrierID), clip(o.detail)
		c.times[i] = pgtype.Timestamptz{Time: o.at, Valid: !o.at.IsZero()}
	}
	return c
}

// clip shortens a carrier's text and makes it valid for a text column.
func clip(s string) string {
	if len(s) > 300 {
		s = s[:300]
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "?"), "\x00", "?")
}

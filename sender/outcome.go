package sender

import (
	"slices"
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

// columns are the columns of outcomes, as outcomeRows reads them.
type columns struct {
	ordinals, codes                            []int16
	kinds, bases, reasons, carrierIDs, details []string
	times                                      []pgtype.Timestamptz
}

func outcomeColumns(done []outcome) columns {
	c := columns{ordinals: make([]int16, len(done))}
	for i := range done {
		c.ordinals[i] = done[i].ordinal
	}
	c.kinds = column(done, func(o *outcome) string { return o.kind })
	c.bases = column(done, func(o *outcome) string { return o.basis })
	c.reasons = column(done, func(o *outcome) string { return clip(o.reason) })
	c.codes = column(done, func(o *outcome) int16 { return int16(o.code) })
	c.carrierIDs = column(done, func(o *outcome) string { return clip(o.carrierID) })
	c.details = column(done, func(o *outcome) string { return clip(o.detail) })
	c.times = column(done, func(o *outcome) pgtype.Timestamptz {
		if o.at.IsZero() {
			return pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true} // that of the commit
		}
		return pgtype.Timestamptz{Time: o.at, Valid: true}
	})
	return c
}

// column is a column of outcomes. If it has one value, as most columns of a window do, it has
// it once: Postgres and this process would spend more on its repetition than on the rest.
func column[T comparable](done []outcome, of func(*outcome) T) []T {
	all := make([]T, 0, min(len(done), 1))
	for i := range done {
		value := of(&done[i])
		switch {
		case i == 0 || len(all) > 1:
			all = append(all, value)
		case value != all[0]:
			all = append(slices.Grow(slices.Repeat(all, i), len(done)-i), value)
		}
	}
	return all
}

// repeated is a column with a value for each of n outcomes.
func repeated[T any](column []T, n int) []T {
	if len(column) == 1 {
		return slices.Repeat(column, n)
	}
	return column
}

// outcomeRows are the rows of outcomeColumns. Missing values of a column are its first.
const outcomeRows = `(
			select o.ordinal, coalesce(o.kind, (@kinds::text[])[1]) as kind, coalesce(o.basis, (@bases::text[])[1]) as basis,
				coalesce(o.reason, (@reasons::text[])[1]) as reason, coalesce(o.code, (@codes::smallint[])[1]) as code,
				coalesce(o.carrier_id, (@carrier_ids::text[])[1]) as carrier_id, coalesce(o.detail, (@details::text[])[1]) as detail,
				coalesce(o.at, (@times::timestamptz[])[1]) as at
			from unnest(@ordinals::smallint[], @kinds::text[], @bases::text[], @reasons::text[], @codes::smallint[], @carrier_ids::text[],
				@details::text[], @times::timestamptz[]) as o (ordinal, kind, basis, reason, code, carrier_id, detail, at)) o`

// clip shortens a carrier's text and makes it valid for a text column.
func clip(s string) string {
	if s == "" {
		return s
	}
	if len(s) > 300 {
		s = s[:300]
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "?"), "\x00", "?")
}

package flows

import (
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
)

// mark is a place in a list that is ordered by time, newest first, and by id
// where many lines have one time. Rows leave by their retention, so a cursor
// holds the place itself and not the name of a row.
type mark struct {
	at pgtype.Timestamptz
	id uuid.UUID
}

// firstMark is before every line.
var firstMark = mark{at: pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}, id: uuid.Max}

func (m mark) cursor() string {
	return strconv.FormatInt(m.at.Time.UnixMicro(), 36) + "." + m.id.String()
}

func parseMark(cursor string) (mark, error) {
	if cursor == "" {
		return firstMark, nil
	}
	at, id, _ := strings.Cut(cursor, ".")
	micros, err := strconv.ParseInt(at, 36, 64)
	if err != nil {
		return mark{}, foreignCursor()
	}
	key, err := uuid.Parse(id)
	if err != nil || len(id) != 36 || micros < 0 || micros > latestMark {
		return mark{}, foreignCursor()
	}
	return mark{at: pgtype.Timestamptz{Time: time.UnixMicro(micros).UTC(), Valid: true}, id: key}, nil
}

// latestMark is the year 9999: what lies beyond is no cursor of ours, and
// nothing that the database should be asked about.
var latestMark = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()

// cut takes the line too many off a list that was read with one more than the
// page holds, and answers where the next page begins.
func cut[T any](all []T, page lemma.Page, of func(T) mark) ([]T, string) {
	if len(all) <= page.Limit {
		return all, ""
	}
	all = all[:page.Limit]
	return all, of(all[page.Limit-1]).cursor()
}

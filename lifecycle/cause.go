package lifecycle

import "time"

// Cause is a reason of Lemma's own to pause a campaign or flow, such as a provider that
// fails.
type Cause struct {
	Reason, Detail string
	// SeenAt is a time of the database before what caused it. A resume since then has ended
	// this cause, so that a late process does not pause again for it. Zero: it has no end.
	SeenAt time.Time
}

// Seen is SeenAt, or nil if it is zero.
func (c Cause) Seen() *time.Time {
	if c.SeenAt.IsZero() {
		return nil
	}
	return &c.SeenAt
}

// EndedBy reports that a campaign or flow was resumed after the cause arose. nil: it was
// not resumed.
func (c Cause) EndedBy(resumed *time.Time) bool {
	return resumed != nil && c.Seen() != nil && resumed.After(c.SeenAt)
}

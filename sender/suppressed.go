package sender

import (
	"context"
	"slices"
	"time"

	"lemma/notifications"
	"lemma/suppression"
)

// skipSuppressed ends the rows of a claim whose address must not be sent to. It
// reads after the claim, and so finds what was suppressed since the fan-out.
func (s *Sender) skipSuppressed(ctx context.Context, c *claim, content *content) (gone []outcome, err error) {
	if c.checked.IsZero() && !c.suppressions { // the claim has found none in the workspace
		c.checked = c.started
		return nil, nil
	}
	c.checked = time.Now()
	rows := c.rows[c.next:]
	if len(rows) == 0 {
		return nil, nil
	}
	addresses := make([]string, len(rows))
	for i, r := range rows {
		addresses[i] = r.Address
	}
	found, err := suppression.Check(ctx, s.pool, c.WorkspaceID, content.suppressed, addresses)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	suppressed := make(map[int16]bool, len(found))
	for _, f := range found {
		ordinal := rows[f.Index].Ordinal
		suppressed[ordinal] = true
		s.metrics.suppressed(f.Cause)
		gone = append(gone, outcome{ordinal: ordinal, kind: skipped, basis: "gate", reason: notifications.Suppressed,
			detail: f.Cause, at: time.Now()})
	}
	c.rows = append(c.rows[:c.next:c.next], slices.DeleteFunc(slices.Clone(rows), func(r row) bool { return suppressed[r.Ordinal] })...)
	return gone, nil
}

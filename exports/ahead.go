package exports

import (
	"time"

	"lemma/clock"
)

// retryMost is longer than any wait of backOff, and than publishAgain.
const retryMost = 5 * time.Minute

// Repairs returns the repairs of the times of exports and of their blobs.
func (e *Exports) Repairs() []clock.Repair {
	return append(e.Blobs.Repairs(), clock.Update(e.Pool, "exports", `
		update exports set retry_at = now()
		where status in ('queued', 'running', 'publishing') and retry_at > now() + $1::interval`, retryMost+clock.Slack))
}

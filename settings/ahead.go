package settings

import (
	"time"

	"lemma/clock"
)

// Repairs returns the repair of the times of processes that were stored while the clock of the
// database was ahead. They are set to a moment ago, so that a process that starts next is newer.
func (s *Settings) Repairs() []clock.Repair {
	return []clock.Repair{clock.Update(s.pool, "settings", `
		update settings set started_at = least(started_at, now() - $1::interval), seen_at = least(seen_at, now() - $1::interval)
		where greatest(started_at, seen_at) > now() + $1::interval`, clock.Slack)}
}

// repaired returns when this process started: earlier than it has read from a wrong clock, if
// the stored time was repaired. Without that the row of its own value is not older.
func (s *Settings) repaired(started time.Time, all []Stored) time.Time {
	for _, v := range all {
		if value, ok := s.own[v.Name]; ok && v.Value == value && v.StartedAt.Before(started) {
			started = v.StartedAt
		}
	}
	return started
}

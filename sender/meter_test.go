package sender

import (
	"testing"
	"time"
)

// Two outages with idle time between them are not one long outage: only consecutive
// calls prove that a provider fails all the time.
func TestIdleTimeOfAMeterIsNoOutage(t *testing.T) {
	t.Parallel()
	cfg := Config{}.withDefaults()
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		idle   time.Duration
		pauses bool
	}{{30 * time.Second, true}, {6 * time.Minute, true}, {10 * time.Minute, false}, {time.Hour, false}} {
		failed, opened, token := now.Add(-c.idle), now.Add(-c.idle-10*time.Minute), "t"
		m := meter{FirstError: "connect_failed", FailingSince: &opened, OpenedAt: &opened, FailedAt: &failed, ProbeToken: &token, Now: now}
		if c.idle < 10*time.Minute {
			early := now.Add(-20 * time.Minute)
			m.OpenedAt = &early
		}
		r := run{failures: 1, first: "connect_failed", down: "connect_failed", last: "connect_failed"}
		m.fail(r, m.Now, token, cfg)
		if reason, _ := m.pauseFor(r, cfg); (reason != "") != c.pauses {
			t.Errorf("after %v without a call: paused for %q", c.idle, reason)
		}
	}
}

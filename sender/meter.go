package sender

import (
	"fmt"
	"time"
)

// meter is a locked row of provider_meters.
type meter struct {
	Failures, Refusals, Rejections int
	Hangs                          int
	FirstError                     string
	FailingSince                   *time.Time
	LastError                      string
	FailedAt                       *time.Time
	AskedUntil                     *time.Time // end of the Retry-After of the last failure; nil for none
	OpenedAt, OpenUntil            *time.Time // nil: the circuit is closed
	Probes                         int
	ProbeToken                     *string
	ProbeUntil                     *time.Time
	Now                            time.Time // the database's
	Changed                        bool      // the provider was changed since the claim
}

// hangsMost is how many recipients in a row, for which the server does not reply, open
// the circuit. Each takes a whole CallTimeout, so that CircuitAfter is too many.
const hangsMost = 5

// fail adds the failures of a claim that began at that time, and opens the circuit,
// closes it or backs off.
func (m *meter) fail(r run, begun time.Time, token string, cfg Config) {
	if r.failures == 0 {
		m.closeByTokens(token, cfg)
		return
	}
	m.skipIdle(begun, cfg)
	m.Failures += r.failures
	m.Refusals += r.refusals
	m.Rejections += r.rejections
	if r.answered {
		m.Hangs = 0
	}
	m.Hangs += r.hangs
	m.LastError, m.FailedAt, m.AskedUntil = r.last, &m.Now, nil
	if r.retryAfter > 0 {
		until := m.Now.Add(r.retryAfter)
		m.AskedUntil = &until
	}
	if m.FailingSince == nil {
		m.FirstError, m.FailingSince = r.first, &m.Now
	}
	probed := m.ProbeToken != nil && *m.ProbeToken == token
	broken := r.down != "" || m.Refusals+m.Rejections >= cfg.CircuitAfter || m.Hangs >= hangsMost
	switch {
	case broken && m.OpenedAt == nil:
		if r.down != "" { // earlier failures of single messages are another cause
			m.FirstError, m.FailingSince = r.down, &m.Now
		}
		m.OpenedAt, m.Probes = &m.Now, 0
		m.backOff(r, cfg)
	case broken && probed:
		m.Probes++
		m.backOff(r, cfg)
	case m.AskedUntil != nil && m.OpenUntil.Before(*m.AskedUntil): // by a call that began before the circuit opened
		m.OpenUntil = m.AskedUntil
	case probed:
		m.OpenedAt, m.OpenUntil, m.Probes = nil, nil, 0
	}
	if probed {
		m.ProbeToken, m.ProbeUntil = nil, nil
	}
}

// closeByTokens closes the circuit after a probe to which the provider replied about single tokens: it
// works again, unless it was messages without an acceptance that opened the circuit.
func (m *meter) closeByTokens(token string, cfg Config) {
	if m.ProbeToken == nil || *m.ProbeToken != token || m.Refusals+m.Rejections >= cfg.CircuitAfter || m.Hangs >= hangsMost {
		return
	}
	m.OpenedAt, m.OpenUntil, m.Probes, m.ProbeToken, m.ProbeUntil = nil, nil, 0, nil, nil
}

// skipIdle removes the time in which nothing was due from an outage, since failures
// before and after it do not prove that the provider failed all the time. Two
// consecutive failures are apart by a back-off, or by a Retry-After, and a probe may be
// late by a back-off more. An idle time that is longer than the wait of a second attempt starts a new
// outage.
func (m *meter) skipIdle(begun time.Time, cfg Config) {
	if m.FailedAt == nil {
		return
	}
	expected := m.FailedAt.Add(cfg.CircuitMost)
	if m.AskedUntil != nil && m.AskedUntil.After(expected) {
		expected = *m.AskedUntil
	}
	idle := begun.Sub(expected) - cfg.CircuitMost
	anew := idle > min(cfg.PauseAfter, cfg.Lease+cfg.ReapEvery)
	if anew {
		m.FirstError, m.FailingSince, m.Probes = "", nil, 0
	}
	switch {
	case m.OpenedAt == nil:
	case anew:
		m.OpenedAt = &m.Now
	case idle > 0:
		opened := m.OpenedAt.Add(idle)
		m.OpenedAt = &opened
	}
}

// backOff sets the time of the next probe: by the failed probes, and not before the
// provider's Retry-After.
func (m *meter) backOff(r run, cfg Config) {
	until := m.Now.Add(max(min(cfg.CircuitFirst<<min(m.Probes, 20), cfg.CircuitMost), r.retryAfter))
	m.OpenUntil = &until
}

// rejecting reports that the carrier has rejected CircuitAfter messages in a row.
func (m *meter) rejecting(cfg Config) bool { return m.Rejections >= cfg.CircuitAfter }

// pauseFor returns the reason to pause the campaign or flow, or "".
func (m *meter) pauseFor(r run, cfg Config) (reason, detail string) {
	switch {
	case r.definite != "":
		return "provider_refused", "the provider refuses the account or the sender: " + r.definite
	case m.rejecting(cfg):
		return "provider_refused", fmt.Sprintf("%d messages in a row were rejected; the first answer was %s, the last %s",
			m.Rejections, m.FirstError, m.LastError)
	case m.OpenedAt != nil && m.Now.Sub(*m.OpenedAt) >= cfg.PauseAfter:
		return "provider_errors", fmt.Sprintf(
			"the provider has failed since %s, in %d calls in a row; the first failure was %s, the last %s",
			m.FailingSince.UTC().Format(time.RFC3339), m.Failures, m.FirstError, m.LastError)
	}
	return "", ""
}

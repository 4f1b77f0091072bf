package sender

import (
	"fmt"
	"time"
)

// meter is a provider's row in provider_meters, locked.
type meter struct {
	Failures, Refusals, Rejections int
	FirstError                     string
	FailingSince                   *time.Time
	LastError                      string
	FailedAt                       *time.Time
	OpenedAt, OpenUntil            *time.Time // nil: the circuit is closed
	Probes                         int
	ProbeToken                     *string
	ProbeUntil                     *time.Time
	Now                            time.Time // the database's
}

// fail adds the failures that a claim met which began at that time, and opens or
// closes the circuit or backs off.
func (m *meter) fail(r run, begun time.Time, token string, cfg Config) {
	m.skipSilence(begun, cfg)
	m.Failures += r.failures
	m.Refusals += r.refusals
	m.Rejections += r.rejections
	m.LastError, m.FailedAt = r.last, &m.Now
	if m.FailingSince == nil {
		m.FirstError, m.FailingSince = r.first, &m.Now
	}
	probed := m.ProbeToken != nil && *m.ProbeToken == token
	broken := r.down != "" || m.Refusals+m.Rejections >= cfg.CircuitAfter
	switch {
	case broken && m.OpenedAt == nil:
		if r.down != "" { // what single messages met before is another matter
			m.FirstError, m.FailingSince = r.down, &m.Now
		}
		m.OpenedAt, m.Probes = &m.Now, 0
		m.shut(cfg)
	case broken && probed:
		m.Probes++
		m.shut(cfg)
	case probed:
		m.OpenedAt, m.OpenUntil, m.Probes = nil, nil, 0
	}
	if probed {
		m.ProbeToken, m.ProbeUntil = nil, nil
	}
}

// skipSilence takes out of an outage the time in which nothing was due: that a
// provider failed then and fails now does not say that it failed all the time.
// Between two failures in a row lies a back-off, and as much again for how late a
// probe may come. A silence longer than a row whose outcome is unknown keeps its
// second attempt waiting begins anew.
func (m *meter) skipSilence(begun time.Time, cfg Config) {
	if m.FailedAt == nil {
		return
	}
	silence := begun.Sub(*m.FailedAt) - 2*cfg.CircuitMost
	anew := silence > min(cfg.PauseAfter, cfg.Lease+cfg.ReapEvery)
	if anew {
		m.FirstError, m.FailingSince, m.Probes = "", nil, 0
	}
	switch {
	case m.OpenedAt == nil:
	case anew:
		m.OpenedAt = &m.Now
	case silence > 0:
		opened := m.OpenedAt.Add(silence)
		m.OpenedAt = &opened
	}
}

func (m *meter) shut(cfg Config) {
	until := m.Now.Add(min(cfg.CircuitFirst<<min(m.Probes, 20), cfg.CircuitMost))
	m.OpenUntil = &until
}

// rejecting: the carrier takes nothing of what it is given, and says that it never will.
func (m *meter) rejecting(cfg Config) bool { return m.Rejections >= cfg.CircuitAfter }

// pauseFor says for which reason what the calls belonged to is to be paused, if
// it is.
func (m *meter) pauseFor(r run, cfg Config) (reason, detail string) {
	switch {
	case r.definite != "":
		return "provider_refused", "the provider refuses the account or the sender: " + r.definite
	case m.rejecting(cfg):
		return "provider_refused", fmt.Sprintf("%d messages in a row were rejected; the first answer was %s, the last %s", m.Rejections, m.FirstError, m.LastError)
	case m.OpenedAt != nil && m.Now.Sub(*m.OpenedAt) >= cfg.PauseAfter:
		return "provider_errors", fmt.Sprintf("the provider has failed since %s, in %d calls in a row; the first failure was %s, the last %s",
			m.FailingSince.UTC().Format(time.RFC3339), m.Failures, m.FirstError, m.LastError)
	}
	return "", ""
}

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

// fail adds failures, and opens or closes the circuit or backs off.
func (m *meter) fail(r run, token string, cfg Config) {
	m.forget(cfg)
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

// forget begins anew where no call was made for longer than probes are apart,
// or than a batch in doubt keeps the next one waiting: that a provider failed
// then and fails now does not say that it failed all the time.
func (m *meter) forget(cfg Config) {
	apart := min(cfg.PauseAfter, cfg.Lease+cfg.ReapEvery) + 2*cfg.CircuitMost
	if m.FailedAt == nil || m.Now.Sub(*m.FailedAt) <= apart {
		return
	}
	m.FirstError, m.FailingSince, m.Probes = "", nil, 0
	if m.OpenedAt != nil {
		m.OpenedAt = &m.Now
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

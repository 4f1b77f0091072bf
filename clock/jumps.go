package clock

import (
	"sync"
	"time"
)

// Jumps notices that the clock of the database was set ahead: after a virtual machine is
// resumed, or by a failover to a server whose clock is ahead. A lease then seems to have expired
// before its holder has stopped. It compares readings with the monotonic clock, and the first
// one with the clock of the machine. It is safe for concurrent use.
type Jumps struct {
	within time.Duration
	begun  time.Time

	mu   sync.Mutex
	seen []offset // oldest first
}

// offset is how much the database is ahead of the clock of this process, which nobody sets.
type offset struct{ at, of time.Duration }

// jumpSlack is what two clocks of one network may differ by, and a statement may take.
const jumpSlack = 5 * time.Second

// NewJumps returns a Jumps that compares with the readings of so long before.
func NewJumps(within time.Duration) *Jumps {
	return &Jumps{within: within, begun: time.Now(), seen: []offset{{}}}
}

// Add remembers a reading, unless it took so long that it shows too little.
func (j *Jumps) Add(r Reading) {
	if r.Ended.Sub(r.Begun) >= jumpSlack {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	at := r.Ended.Sub(j.begun)
	for len(j.seen) > 1 && j.seen[1].at < at-j.within {
		j.seen = j.seen[1:] // the second one was valid at the begin of the time
	}
	j.seen = append(j.seen, offset{at, j.offset(r.At, r.Ended)})
}

// Ahead returns by how much the clock of the database was set ahead since the earliest reading
// that counts; 0 for less than 5 s. read is its time, and after a moment of this process before
// it was read.
func (j *Jumps) Ahead(read, after time.Time) time.Duration {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := j.offset(read, after)
	least := now
	for _, o := range j.seen {
		least = min(least, o.of)
	}
	if now-least < jumpSlack {
		return 0
	}
	return now - least
}

func (j *Jumps) offset(read, at time.Time) time.Duration {
	return read.Sub(j.begun.Add(at.Sub(j.begun)).Round(0))
}

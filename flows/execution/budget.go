package execution

import "time"

// budget bounds the memory of one chunk: the facts of each kind, and the results that are
// to be written, have each at most so many bytes. Executions beyond it are left: they stay
// due, and are read again with the next chunk. At least one execution of a chunk advances,
// however large it is.
type budget struct {
	most  int
	facts [needActed + 1]int // bytes read, by kind
	made  int                // bytes to be written

	searched, counted time.Duration // searching events for waits, and counting them
}

// left is how many more bytes of a kind of facts may be read.
func (b *budget) left(n need) int { return max(0, b.most-b.facts[n]) }

// take counts a fact, or reports that it exceeds the budget. The first one never does.
func (b *budget) take(n need, f *fact) bool {
	if b.facts[n] > 0 && b.facts[n]+f.size > b.most {
		return false
	}
	b.facts[n] += f.size
	return true
}

// spent reports whether the results have used up the budget.
func (b *budget) spent() bool { return b.made >= b.most }

// What a step or a message takes besides its texts, with what is made of it to write it.
const (
	stepBytes    = 200
	messageBytes = 400
)

// size is the number of bytes that an execution's steps, messages and webhooks have.
func (t *Execution) size() (n int) {
	for _, l := range t.Log {
		n += stepBytes + len(l.Data)
	}
	return n + t.messages()
}

// messages is the number of bytes that an execution's messages and webhooks have.
func (t *Execution) messages() (n int) {
	for _, s := range t.Sends {
		n += messageBytes + len(s.Address) + len(s.Payload)
	}
	for _, c := range t.Calls {
		n += messageBytes + len(c.Body)
	}
	return n
}

// The limits of a chunk for which executions are left for the next one.
const (
	leftForMemory = "memory"
	leftForTime   = "time"
)

// leaveForNextChunk leaves an execution as it was read.
func (t *Execution) leaveForNextChunk(limit string) {
	*t = *t.asRead()
	t.LeftFor = limit
}

// Evaluated are the executions that were not left for the next chunk.
func Evaluated(all []*Execution) (done []*Execution) {
	for _, t := range all {
		if t.LeftFor == "" {
			done = append(done, t)
		}
	}
	return done
}

package campaigns

import (
	"errors"
	"sync"

	"lemma/notifications"
	"lemma/pgerr"
)

// copyPolicy decides which chunks of a run are written by COPY, which is faster but
// fails if one key exists. Only the first run of a campaign copies: its keys are
// new, unless the audience repeats an address across chunks. After a conflict the
// next chunks are inserted: 1, and twice as many after each further conflict in a
// row, at most maxInserts.
type copyPolicy struct {
	mu    sync.Mutex
	pause int // chunks to insert after the last conflict
	left  int // chunks to insert before the next COPY
}

const maxInserts = 64

// deadlockRetries bounds how often a chunk is written again after a deadlock or a
// serialization failure.
const deadlockRetries = 5

// write writes a chunk by once, which runs one transaction. It runs once again
// after a conflict of a COPY and after a deadlock.
func (c *copyPolicy) write(chunk *notifications.Chunk, m *Metrics, once func() error) error {
	chunk.Copy = chunk.Run == 1 && c.next()
	for deadlocks := 0; ; {
		err := once()
		switch {
		case chunk.Copy && errors.Is(err, notifications.ErrRepeated):
			m.tried("conflict")
			c.conflicted()
			chunk.Copy = false
		case pgerr.Retryable(err) && deadlocks < deadlockRetries:
			m.tried("deadlock")
			deadlocks++
		default:
			if err == nil && chunk.Copy {
				m.tried("copied")
				c.succeeded()
			} else if err == nil {
				m.tried("inserted")
			}
			return err
		}
	}
}

// next reports whether the next chunk is copied.
func (c *copyPolicy) next() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left > 0 {
		c.left--
		return false
	}
	return true
}

func (c *copyPolicy) conflicted() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pause = min(max(2*c.pause, 1), maxInserts)
	c.left = c.pause
}

func (c *copyPolicy) succeeded() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pause = 0
}

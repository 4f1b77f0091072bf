package campaigns

import (
	"errors"
	"sync"

	"lemma/notifications"
	"lemma/pgerr"
)

// copies decides which chunks of a run are written by COPY, which is faster
// and fails when one key is stored already. The first run of a campaign copies:
// its keys are new, unless the audience repeats an address across chunks. After
// a conflict the next chunks are inserted: 1, and twice as many after each
// further conflict in a row, at most copiesRest. A run that repeats another
// never copies.
type copies struct {
	mu   sync.Mutex
	rest int // chunks to insert after the next conflict
	left int // chunks to insert before the next COPY
}

const copiesRest = 64

// deadlockRetries bounds how often a chunk is written again that Postgres
// aborted to end a deadlock, or that it could not serialize.
const deadlockRetries = 5

// write writes a chunk by once, which runs one whole transaction and may be
// repeated. A conflict of a COPY and a deadlock each lead to a fresh one.
func (c *copies) write(chunk *notifications.Chunk, m *Metrics, once func() error) error {
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
func (c *copies) next() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left > 0 {
		c.left--
		return false
	}
	return true
}

func (c *copies) conflicted() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rest = min(max(2*c.rest, 1), copiesRest)
	c.left = c.rest
}

func (c *copies) succeeded() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rest = 0
}

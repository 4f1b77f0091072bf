package idempotency

import (
	"sync"
	"time"

	"github.com/google/uuid"
)

// mostKept is how many bytes of large answers to small requests a workspace may have kept. They count
// less with time, and nothing after keptFor.
const mostKept = 1 << 30

// Such bytes are those beyond a small answer, and beyond so many times the body of the request: a bulk
// and its answer have about the same size, and an action without a body may answer 100 KB.
const (
	smallAnswer = 4 << 10
	answerTimes = 4
)

// quota bounds what short requests of a workspace make this process keep. It is safe for concurrent use.
type quota struct {
	mu   sync.Mutex
	used map[uuid.UUID]usage
}

type usage struct {
	bytes int64
	at    time.Time
}

// left is what counts at a time.
func (u usage) left(now time.Time) int64 {
	return max(0, u.bytes-int64(now.Sub(u.at).Seconds()*mostKept/keptFor.Seconds()))
}

// isUsed reports that a workspace has used its quota.
func (q *quota) isUsed(workspace uuid.UUID) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.used[workspace].left(time.Now()) >= mostKept
}

// add counts an answer that is kept, of so many bytes, to a request with a body of so many.
func (q *quota) add(workspace uuid.UUID, body, answer int) {
	more := int64(answer - smallAnswer - answerTimes*body)
	if more <= 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	q.used[workspace] = usage{q.used[workspace].left(now) + more, now}
}

package sender

import (
	"context"
	"sync"

	"github.com/google/uuid"
)

// CheckErrors decides whether an origin goes on of which messages could not be
// rendered; detail is the last error. It looks at the counters in the database.
type CheckErrors func(ctx context.Context, workspaceID, origin uuid.UUID, detail string) error

// errorCounts are the template errors of this process, by origin. They only say
// when it is worth to look at the counters that decide: at first after
// leastStep errors, then after an eighth more than before, at most mostStep.
type errorCounts struct {
	mu     sync.Mutex
	counts map[uuid.UUID]errorCount
}

type errorCount struct{ seen, next int }

const (
	leastStep = 10
	mostStep  = 500
)

// mostCounts bounds the memory. All are forgotten when there are more, which
// only makes looks more frequent.
const mostCounts = 1000

// due counts n more errors and tells whether to look.
func (e *errorCounts) due(origin uuid.UUID, n int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.counts == nil || len(e.counts) > mostCounts {
		e.counts = map[uuid.UUID]errorCount{}
	}
	one, ok := e.counts[origin]
	if !ok {
		one.next = leastStep
	}
	one.seen += n
	due := one.seen >= one.next
	if due {
		one.next = one.seen + min(max(one.seen/8, leastStep), mostStep)
	}
	e.counts[origin] = one
	return due
}

// checkErrors is called when outcomes have been committed. That it fails does
// not concern the batch: the next errors bring it about again.
func (s *Sender) checkErrors(ctx context.Context, c *claim, done []outcome) {
	n, detail := 0, ""
	for _, o := range done {
		if o.kind == skipped && o.reason == "template_error" {
			n, detail = n+1, o.detail
		}
	}
	if n == 0 || s.errors == nil || !s.unrendered.due(c.OriginID, n) {
		return
	}
	if err := s.errors(ctx, c.WorkspaceID, c.OriginID, clip(detail)); err != nil {
		s.log.Error("template errors not checked", "origin_id", c.OriginID, "error", err)
	}
}

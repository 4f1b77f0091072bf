package sender

import (
	"context"
	"sync"

	"github.com/google/uuid"
)

// CheckErrors decides by the counters in the database whether an origin with template
// errors continues. detail is the last error.
type CheckErrors func(ctx context.Context, workspaceID, origin uuid.UUID, detail string) error

// errorCounts are the template errors of this process, by origin. They only limit how
// often CheckErrors runs: first after leastStep errors, then after an eighth more than
// before, at most mostStep.
type errorCounts struct {
	mu     sync.Mutex
	counts map[uuid.UUID]errorCount
}

type errorCount struct{ seen, next int }

const (
	leastStep = 10
	mostStep  = 500
)

// mostCounts bounds the memory. The counts are deleted when there are more, which only
// makes checks more frequent.
const mostCounts = 1000

// due counts n more errors, and reports whether to check.
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

// checkErrors runs after a commit. Its failure does not concern the batch: later
// errors repeat it.
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

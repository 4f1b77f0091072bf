package sender

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/unsubscribe"
)

// unprepared gives a batch back whose provider or content cannot be opened.
func (s *Sender) unprepared(ctx context.Context, c *claim, cause error) (time.Duration, error) {
	if lemma.KindOf(cause) == lemma.Internal {
		_, err := s.giveBackFailed(ctx, c, nil, cause)
		return 0, err
	}
	s.reportUnprepared(c, cause)
	if err := s.pauseFor(ctx, c, "provider_unusable", lemma.Public(cause)); err != nil {
		return 0, fmt.Errorf("pause %s: %w", c.OriginID, err)
	}
	return s.giveBack(ctx, c, nil, s.cfg.DeferFor)
}

// reportUnprepared makes the cause visible in explain, in the metrics, and in the log once a
// minute for a workspace and a cause. A campaign or flow is paused for it; direct notifications wait, and nothing else shows
// why.
func (s *Sender) reportUnprepared(c *claim, cause error) {
	c.detail = lemma.Public(cause)
	s.metrics.unprepared(errors.Is(cause, unsubscribe.ErrNoPublicURL))
	if s.unpreparedAt.due(c.WorkspaceID, c.detail, time.Now()) {
		s.log.Warn("a batch cannot be prepared, and is tried again later",
			"batch_id", c.BatchID, "origin_id", c.OriginID, "provider_id", c.providerID, "error", cause)
	}
}

const (
	reportEvery = time.Minute
	mostReports = 100 // in a minute: of workspaces and causes together
)

// reported is when causes were reported, of each workspace by itself: one that is tried often
// does not hide the others. Its memory is bounded, and so is the number of reports in a minute.
type reported struct {
	mu   sync.Mutex
	last map[report]time.Time
}

type report struct {
	workspace uuid.UUID
	cause     string
}

// due returns whether to report a cause now, to one of its callers.
func (r *reported) due(workspace uuid.UUID, cause string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.last, func(_ report, at time.Time) bool { return now.Sub(at) > reportEvery })
	of := report{workspace, cause}
	if _, lately := r.last[of]; lately || len(r.last) >= mostReports {
		return false
	}
	if r.last == nil {
		r.last = map[report]time.Time{}
	}
	r.last[of] = now
	return true
}

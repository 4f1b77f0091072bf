package sender

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lemma"
	"lemma/notifications"
	"lemma/unsubscribe"
)

// unprepared gives a batch back whose provider or content cannot be opened.
func (s *Sender) unprepared(ctx context.Context, c *claim, cause error) (time.Duration, error) {
	if lemma.KindOf(cause) == lemma.Internal {
		_, err := s.giveBackFailed(ctx, c, nil, cause)
		return 0, err
	}
	s.reportUnprepared(c, cause)
	if err := s.pause(ctx, c.WorkspaceID, c.OriginID, c.providerID, c.cause("provider_unusable", lemma.Public(cause))); err != nil {
		return 0, fmt.Errorf("pause %s: %w", c.OriginID, err)
	}
	return s.giveBack(ctx, c, nil, s.cfg.DeferFor)
}

// reportUnprepared makes the cause visible in explain, in the metrics, and in the log once a
// minute. A campaign or flow is paused for it; direct notifications wait, and nothing else shows
// why.
func (s *Sender) reportUnprepared(c *claim, cause error) {
	c.detail = lemma.Public(cause)
	s.metrics.unprepared(errors.Is(cause, unsubscribe.ErrNoPublicURL))
	if !notifications.IsDirect(c.OriginID) {
		s.metrics.paused("provider_unusable")
	}
	if now, last := time.Now(), s.unpreparedAt.Load(); last == nil || now.Sub(*last) > time.Minute {
		s.unpreparedAt.Store(&now)
		s.log.Warn("a batch cannot be prepared, and is tried again later",
			"batch_id", c.BatchID, "origin_id", c.OriginID, "provider_id", c.providerID, "error", cause)
	}
}

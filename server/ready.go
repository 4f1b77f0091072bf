package server

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"lemma/migrations"
)

// readiness is what /readyz remembers.
type readiness struct {
	checks   singleflight.Group
	migrated atomic.Int64 // the schema was seen complete, at the moment before this one; 0: it was not
}

// ready is the check of /readyz. Requests that arrive while one is checked share its result:
// they need no key, and would hold the connections that authentication needs.
func (s *Server) ready(ctx context.Context) error {
	checked := s.readiness.checks.DoChan("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readyTimeout)
		defer cancel()
		return nil, s.checkReady(ctx)
	})
	select {
	case r := <-checked:
		return r.Err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// readyTimeout bounds a check that others wait for.
const readyTimeout = 5 * time.Second

// checkReady checks that the database answers and has the schema that this version needs. A
// schema that was complete once is not read again. The other guards are checked once, by Start.
func (s *Server) checkReady(ctx context.Context) error {
	now := int64(s.cfg.History.Now()) + 1
	if s.readiness.migrated.Load() == now {
		return s.reserved.Ping(ctx)
	}
	err := migrations.Behind(ctx, s.reserved)
	if err == nil {
		s.readiness.migrated.Store(now)
	}
	return err
}

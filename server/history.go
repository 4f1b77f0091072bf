package server

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/cache"
	"lemma/loop"
)

// identify is text that no other server or database has: a server that takes over, or that is
// restored, has another start, and a database that is restored beside it has another id, or
// its tables have. Every role may read these, on a standby as well. (pg_promote changes none,
// but a standby is another server than the primary that it replaces; the timeline cannot be
// read everywhere.)
const identify = `select concat_ws(' ', pg_postmaster_start_time(), (select oid from pg_database where datname = current_database()),
	to_regclass('template_versions')::oid, to_regclass('flow_versions')::oid, to_regclass('provider_events')::oid)`

// follower keeps a history to the server that answers the connections of a pool.
type follower struct {
	history *cache.History
	pool    atomic.Pointer[pgxpool.Pool] // nil: being opened
}

// connected is called with each new connection, before it is used. When it is to another
// server, connections to the one before are closed first, so that nothing more is read there.
func (f *follower) connected(ctx context.Context, conn *pgx.Conn) error {
	var server string
	if err := conn.QueryRow(ctx, identify, pgx.QueryExecModeSimpleProtocol).Scan(&server); err != nil {
		return fmt.Errorf("identify the database: %w", err)
	}
	f.seen(server)
	return nil
}

func (f *follower) seen(server string) {
	if pool := f.pool.Load(); pool != nil && !f.history.IsOf(server) {
		pool.Reset()
	}
	f.history.Continue(server)
}

// followEvery is how often the server is identified. A pooler may keep the connections of this
// process while it replaces its own.
const followEvery = 2 * time.Second

// follow identifies the server until ctx ends.
func (s *Server) follow(ctx context.Context) {
	if s.cfg.History == nil {
		return
	}
	f := &follower{history: s.cfg.History}
	f.pool.Store(s.Pool)
	loop.Every(ctx, followEvery, func(ctx context.Context) error {
		var server string
		if err := s.Pool.QueryRow(ctx, identify).Scan(&server); err != nil {
			return fmt.Errorf("identify the database: %w", err)
		}
		f.seen(server)
		return nil
	}, func(err error) {
		if !errors.Is(err, context.Canceled) {
			s.log.WarnContext(ctx, "the database cannot be identified", "error", err)
		}
	})
}

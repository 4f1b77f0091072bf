package server

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// MaxSkew is how far the clock of a machine may be from that of the database without a
// warning. The database decides what is due, leased and kept, but the ids of rows, the times of
// opens and clicks and the signatures of webhooks have the time of the machine.
const MaxSkew = 5 * time.Second

// Skew returns how far this machine's clock is ahead of the database's, to the time that a
// statement takes; negative: behind.
func Skew(ctx context.Context, pool *pgxpool.Pool) (time.Duration, error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return 0, fmt.Errorf("read the clock of the database: %w", err)
	}
	defer conn.Release()
	var at time.Time
	begun := time.Now()
	if err := conn.QueryRow(ctx, `select now()`).Scan(&at); err != nil {
		return 0, fmt.Errorf("read the clock of the database: %w", err)
	}
	switch ended := time.Now(); {
	case begun.After(at):
		return begun.Sub(at), nil
	case ended.Before(at):
		return ended.Sub(at), nil
	}
	return 0, nil
}

// WarnOfSkew logs that the clocks differ by more than MaxSkew. It waits at most 5 s for a
// database that does not respond, which others report.
func (s *Server) WarnOfSkew(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if ahead, err := Skew(ctx, s.Pool); err == nil && ahead.Abs() > MaxSkew {
		s.log.WarnContext(ctx, "the clocks of this machine and of the database differ: synchronize them", "ahead", ahead)
	}
}

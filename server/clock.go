package server

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/clock"
	"lemma/loop"
)

// MaxSkew is how far the clock of a machine may be from that of the database without a
// warning. The clock of the database decides what is due, leased and kept, and dates events, opens
// and clicks, but the ids of rows and the signatures of calls have the time of the machine.
const MaxSkew = 5 * time.Second

// Skew returns how far this machine's clock is ahead of the database's, to the time that a
// statement takes; negative: behind.
func Skew(ctx context.Context, pool *pgxpool.Pool) (time.Duration, error) {
	r, err := clock.Read(ctx, pool)
	switch {
	case err != nil:
		return 0, err
	case r.Begun.After(r.At):
		return r.Begun.Sub(r.At), nil
	case r.Ended.Before(r.At):
		return r.Ended.Sub(r.At), nil
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

// repairEvery is how often a process looks for times that are too far ahead.
const repairEvery = 30 * time.Second

// repairTimes repairs what was written while the clock of the database was ahead, which would
// stand still for as long as the clock was set back. Processes may do so at the same time.
func (s *Server) repairTimes(ctx context.Context) {
	loop.Every(ctx, repairEvery, s.RepairTimes, func(err error) { s.log.Error("repair of times that are too far ahead failed", "error", err) })
}

// RepairTimes is one run. The packages name the bounds of their times.
func (s *Server) RepairTimes(ctx context.Context) error {
	return clock.Run(ctx, s.repairs, s.log, s.clockMetrics)
}

// leaderMost is much longer than River elects a leader for. Only a leader makes scheduled jobs
// available.
const leaderMost = 5 * time.Minute

func (s *Server) allRepairs() []clock.Repair {
	return slices.Concat(s.Sender.Repairs(), s.Providers.Repairs(), s.Campaigns.Repairs(), s.Flows.Repairs(), s.Webhooks.Repairs(),
		s.Exports.Repairs(), s.Settings.Repairs(), []clock.Repair{clock.Update(s.Pool, "river_leader", `
			update river_leader set expires_at = now() + $1::interval where expires_at > now() + $1::interval + $1::interval`, leaderMost)})
}

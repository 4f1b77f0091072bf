package retention

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/migrations"
)

// State describes the partitions of one table.
type State struct {
	Table     string
	Months    int           // attached partitions
	Oldest    time.Time     // the oldest of them; zero without any
	Bytes     int64         // of all, without the default partition
	Kept      time.Duration // 0: for ever
	Held      []string      // older than Kept, each with what needs it
	Detached  []string      // detached, and still to be dropped
	NextMonth bool          // the coming month has its partition
}

// Inspect describes the partitions of all tables by the settings of the workers, or by cfg if
// none has run. It changes nothing.
func Inspect(ctx context.Context, pool *pgxpool.Pool, cfg Config) ([]State, error) {
	now, err := migrations.Now(ctx, pool)
	if err != nil {
		return nil, err
	}
	all, err := migrations.Months(ctx, pool)
	if err != nil {
		return nil, err
	}
	rule, err := readRule(ctx, pool, cfg, false)
	if err != nil {
		return nil, err
	}
	next := time.Date(now.UTC().Year(), now.UTC().Month()+1, 1, 0, 0, 0, 0, time.UTC)
	var states []State
	for _, table := range migrations.Partitioned() {
		s := State{Table: table, Kept: rule.kept()[table]}
		for _, p := range all {
			if p.Table != table {
				continue
			}
			if err := s.add(ctx, pool, rule, p, now); err != nil {
				return nil, err
			}
			s.NextMonth = s.NextMonth || p.Attached && p.Month.Equal(next)
		}
		states = append(states, s)
	}
	return states, nil
}

func (s *State) add(ctx context.Context, pool *pgxpool.Pool, rule rule, p migrations.Partition, now time.Time) error {
	s.Bytes += p.Bytes
	if !p.Attached {
		s.Detached = append(s.Detached, p.Name())
		return nil
	}
	if s.Months++; s.Oldest.IsZero() {
		s.Oldest = p.Month
	}
	if !rule.due(p, now) {
		return nil
	}
	use, err := useOf(ctx, pool, p, s.Kept)
	if err != nil {
		return err
	}
	switch {
	case use != "":
	case rule.archived:
		use = "the next run of a worker with LEMMA_ARCHIVE archives and drops it"
	default:
		use = "the next run of a worker drops it"
	}
	s.Held = append(s.Held, fmt.Sprintf("%s: %s", p.Month.Format("2006-01"), use))
	return nil
}

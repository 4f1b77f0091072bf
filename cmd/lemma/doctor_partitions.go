package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/retention"
)

// partitionFindings describes the partitions of each table. It warns when the coming month
// has none, and of those that are older than their retention.
func partitionFindings(ctx context.Context, c Config, pool *pgxpool.Pool) (list []finding, err error) {
	states, err := retention.Inspect(ctx, pool, c.retention())
	if err != nil {
		return nil, err
	}
	for _, s := range states {
		name := "partitions of " + s.Table
		list = append(list, finding{"ok", name, described(s)})
		if !s.NextMonth {
			list = append(list, finding{"warn", name, "the coming month has none: start a worker, or run lemma migrate up"})
		}
		for _, held := range s.Held {
			list = append(list, finding{"warn", name, held})
		}
		if len(s.Detached) > 0 {
			list = append(list, finding{"warn", name, "detached and not dropped yet: " + strings.Join(s.Detached, ", ")})
		}
	}
	return list, nil
}

func described(s retention.State) string {
	kept := "kept for ever"
	if s.Kept > 0 {
		kept = fmt.Sprintf("kept for %d days after the month", s.Kept/(24*time.Hour))
	}
	if s.Months == 0 {
		return "none, " + kept
	}
	return fmt.Sprintf("%d months since %s, %d MiB, %s", s.Months, s.Oldest.Format("2006-01"), s.Bytes>>20, kept)
}

package fence

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/loop"
)

// Renew renews a lease three times in the time that it lasts, until ctx ends. sql
// updates its row by the token while the lease has not expired. When it finds none,
// the lease is lost, and lost is called once: what was read under an expired lease
// may be old, so renewing must not revive it. failed receives errors; the lease may
// outlast them.
func Renew(ctx context.Context, pool *pgxpool.Pool, lasts time.Duration, lost func(), failed func(error), sql string, args ...any) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	loop.Every(ctx, lasts/3, func(ctx context.Context) error {
		tag, err := pool.Exec(ctx, sql, args...)
		if err == nil && tag.RowsAffected() == 0 {
			lost()
			stop()
		}
		return err
	}, failed)
}

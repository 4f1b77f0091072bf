package bench

import (
	"context"
	"fmt"
	"strconv"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"lemma"
	"lemma/campaigns"
	"lemma/notifications"
)

// fanout measures inserting notifications alone, against a plain COPY into the same
// table with as many writers, and then the same fan-out again, which adds nothing.
func (b *benchmarks) fanout(ctx context.Context, e *env, print func(figure) error) error {
	n, writers := b.n(500_000), 2
	process, err := e.fresh(ctx, e.null.kind())
	if err != nil {
		return err
	}
	defer process.drop()
	copied, err := e.copyReference(ctx, process, n, writers)
	if err != nil {
		return err
	}
	if err := print(copied); err != nil {
		return err
	}
	first, err := e.writeAll(ctx, process, benchOrigin, plain, 1, n, writers)
	if err != nil {
		return err
	}
	first.Ratio, first.Against = round(first.PerSecond/copied.PerSecond), "copy, per second"
	if err := print(first); err != nil {
		return err
	}
	again, err := e.writeAll(ctx, process, benchOrigin, plain, 2, n, writers)
	if err != nil {
		return err
	}
	again.Ratio, again.Against = round(again.Seconds/first.Seconds), "fanout, seconds"
	return print(again)
}

// benchOrigin is the same for every run of the fan-out figure, so that the
// second one repeats the first.
var benchOrigin = lemma.NewID()

func plain(c notifications.Chunk) notifications.Chunk { return c }

func benchRecipients(origin uuid.UUID, from, to int) []notifications.Recipient {
	out := make([]notifications.Recipient, 0, to-from)
	for i := from; i < to; i++ {
		address := fmt.Sprintf("user%d@bench.example", i)
		out = append(out, notifications.Recipient{Key: campaigns.Key(origin, lemma.Email, address),
			ProfileKey: strconv.Itoa(i), Address: address,
			Payload: fmt.Sprintf(`{"name":"Name %d","city":"City %d","points":%d,"last_order":"2026-01-%02d"}`, i, i%1000, i%97, i%28+1)})
	}
	return out
}

// writeAll inserts n recipients as the first or a later run of a fan-out does, in chunks and
// batches of the default sizes. change completes each chunk.
func (e *env) writeAll(ctx context.Context, b *instance, origin uuid.UUID, change func(notifications.Chunk) notifications.Chunk,
	run, n, writers int) (figure, error) {
	name := map[bool]string{true: "fanout", false: "rerun"}[run == 1]
	before := e.count(ctx, b, origin)
	m := startMeter(e.postmaster())
	err := inChunks(ctx, n, writers, func(from, to int) error {
		return pgx.BeginFunc(ctx, b.Pool, func(tx pgx.Tx) error {
			c := change(notifications.Chunk{WorkspaceID: b.workspace, OriginID: origin, ProviderID: origin, ContentID: origin,
				Run: run, Copy: run == 1, MaxAttempts: 2, BatchSize: 1000, Recipients: benchRecipients(origin, from, to)})
			_, err := b.Ledger.Insert(ctx, tx, c)
			return err
		})
	})
	f := m.stop(name, n)
	added := e.count(ctx, b, origin) - before
	if run > 1 {
		f.Duplicates = added
	} else {
		f.Missing = n - added
	}
	return f, err
}

func (e *env) count(ctx context.Context, b *instance, origin uuid.UUID) (n int) {
	_ = b.Pool.QueryRow(ctx,
		`select count(*) from notifications where workspace_id = $1 and origin_id = $2`, b.workspace, origin).Scan(&n)
	return n
}

func inChunks(ctx context.Context, n, writers int, write func(from, to int) error) error {
	const chunk = 4000
	next := make(chan int)
	work, ctx := errgroup.WithContext(ctx)
	work.Go(func() error {
		defer close(next)
		for from := 0; from < n; from += chunk {
			select {
			case next <- from:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	for range writers {
		work.Go(func() error {
			for from := range next {
				if err := write(from, min(from+chunk, n)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return work.Wait()
}

// copyReference measures the same rows by COPY, which is the fastest that Postgres
// can insert them, with another origin.
func (e *env) copyReference(ctx context.Context, b *instance, n, writers int) (figure, error) {
	origin := lemma.NewID()
	m := startMeter(e.postmaster())
	err := inChunks(ctx, n, writers, func(from, to int) error {
		return b.Ledger.CopyIntents(ctx, b.workspace, origin, lemma.NewID(), benchRecipients(origin, from, to))
	})
	return m.stop("copy", n), err
}

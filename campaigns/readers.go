package campaigns

import (
	"context"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// readers is how many connections read the members of an iteration at a time, and then its
// events; a process has twice as many. In a busy process, one connection alone would wait
// for the scheduler most of the time.
const readers = 8

// inReaders reads parts, several at a time. all bounds the connections of all readers.
func inReaders[T any](ctx context.Context, all chan struct{}, parts []T, read func(context.Context, T) error) error {
	work, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range min(readers, len(parts)) {
		work.Go(func() error {
			select {
			case all <- struct{}{}:
				defer func() { <-all }()
			case <-ctx.Done():
				return ctx.Err()
			}
			for i := int(next.Add(1)) - 1; i < len(parts); i = int(next.Add(1)) - 1 {
				if err := read(ctx, parts[i]); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return work.Wait()
}

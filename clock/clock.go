// Package clock estimates the time of the database without a statement for each reading. It
// guarantees:
//
//   - The estimate differs from the time of the database by at most half of the time of the
//     statement that read it, which is at most readFor. The clock of the machine may be wrong,
//     and may be set: the time since that statement is measured by the monotonic clock.
//   - A clock of the database that is set, or that of another server, is followed within maxAge.
//   - While the database does not answer, the last reading counts.
package clock

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	maxAge  = 10 * time.Second // of a reading
	readFor = time.Second      // bounds a statement that reads the time
)

// Clock estimates the time of a database. It is safe for concurrent use.
type Clock struct {
	pool *pgxpool.Pool
	one  sync.Mutex // of the caller that reads
	last atomic.Pointer[Reading]
}

// New returns a clock, which reads the time when it is first needed.
func New(pool *pgxpool.Pool) *Clock { return &Clock{pool: pool} }

// Now returns the time of the database. It fails only while there is no reading. If the last
// one is older than maxAge, one caller reads, and the others do not wait for them.
func (c *Clock) Now(ctx context.Context) (time.Time, error) {
	last := c.last.Load()
	switch {
	case last == nil:
		c.one.Lock()
	case time.Since(last.Ended) < maxAge || !c.one.TryLock():
		return last.now(), nil
	}
	defer c.one.Unlock()
	if newer := c.last.Load(); newer != last {
		return newer.now(), nil
	}
	ctx, cancel := context.WithTimeout(ctx, readFor)
	defer cancel()
	read, err := Read(ctx, c.pool)
	switch {
	case err == nil:
		c.last.Store(&read)
		return read.now(), nil
	case last != nil:
		return last.now(), nil
	}
	return time.Time{}, err
}

// Reading is the time of the database at a moment between two of this process.
type Reading struct{ At, Begun, Ended time.Time }

// Read reads the time by one statement.
func Read(ctx context.Context, pool *pgxpool.Pool) (r Reading, err error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return r, fmt.Errorf("read the clock of the database: %w", err)
	}
	defer conn.Release()
	r.Begun = time.Now()
	if err := conn.QueryRow(ctx, `select now()`).Scan(&r.At); err != nil {
		return r, fmt.Errorf("read the clock of the database: %w", err)
	}
	r.Ended = time.Now()
	return r, nil
}

func (r *Reading) now() time.Time {
	return r.At.Add(time.Since(r.Begun) - r.Ended.Sub(r.Begun)/2).UTC()
}

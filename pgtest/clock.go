package pgtest

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
)

// SetClock stops the clock of a test's database: in statements, now() is the given time. The
// defaults of columns keep the real time.
func SetClock(t testing.TB, pool *pgxpool.Pool, at time.Time) {
	t.Helper()
	Exec(t, pool, fmt.Sprintf(`
		create or replace function public.now() returns timestamptz language sql stable as 'select ''%s''::timestamptz'`,
		at.UTC().Format(time.RFC3339Nano)))
	Exec(t, pool, `do $$ begin execute format('alter database %I set search_path = public, pg_catalog', current_database()); end $$`)
	pool.Reset() // the search path is that of new connections
}

// IDAt is a UUIDv7 that was made at a time.
func IDAt(at time.Time) uuid.UUID {
	id := uuid.Must(uuid.NewV7())
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(at.UnixMilli())<<16)
	copy(id[:6], ms[:6])
	return id
}

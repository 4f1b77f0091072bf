package notifications_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/notifications"
	"lemma/pgtest"
)

// fixture is a workspace with one origin. Outcomes are written by SQL, as package
// sender would.
type fixture struct {
	*notifications.Ledger
	t      *testing.T
	pool   *pgxpool.Pool
	ws     uuid.UUID
	origin uuid.UUID
}

func setup(t *testing.T) *fixture {
	t.Helper()
	t.Parallel()
	pool := pgtest.DB(t)
	return &fixture{Ledger: notifications.New(pool), t: t, pool: pool, ws: pgtest.Workspace(t, pool), origin: lemma.NewID()}
}

func keyOf(i int) uuid.UUID { return lemma.Key("test/1", address(i)) }

func address(i int) string { return fmt.Sprintf("p%d@shop.example", i) }

func recipient(i int) notifications.Recipient {
	return notifications.Recipient{Key: keyOf(i), ProfileKey: fmt.Sprint(i), Address: address(i), Payload: `{}`}
}

func recipients(n int) []notifications.Recipient {
	all := make([]notifications.Recipient, n)
	for i := range all {
		all[i] = recipient(i)
	}
	return all
}

// insert inserts recipients in batches of 10.
func (f *fixture) insert(recipients []notifications.Recipient, change ...func(*notifications.Chunk)) (w notifications.Written) {
	f.t.Helper()
	chunk := notifications.Chunk{WorkspaceID: f.ws, OriginID: f.origin, ProviderID: f.origin, ContentID: f.origin,
		Run: 1, MaxAttempts: 2, BatchSize: 10, Recipients: recipients}
	for _, c := range change {
		c(&chunk)
	}
	f.inTx(func(tx pgx.Tx) (err error) { w, err = f.Insert(f.t.Context(), tx, chunk); return err })
	return w
}

func (f *fixture) inTx(do func(pgx.Tx) error) {
	f.t.Helper()
	if err := pgx.BeginFunc(context.Background(), f.pool, do); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) exec(sql string, args ...any) {
	f.t.Helper()
	if _, err := f.pool.Exec(context.Background(), sql, args...); err != nil {
		f.t.Fatal(err)
	}
}

// end writes the outcome of a recipient's first attempt, and counts it.
func (f *fixture) end(i int, outcome, basis, counter string) {
	f.t.Helper()
	f.exec(`
		with a as (
			insert into attempts (workspace_id, batch_id, ordinal, attempt, outcome, final, basis)
			select workspace_id, batch_id, ordinal, 1, $4, true, $5 from notifications
			where workspace_id = $1 and origin_id = $2 and key = $3
			returning batch_id
		)
		update batches b set `+counter+` = `+counter+` + 1 from a where b.id = a.batch_id`, f.ws, f.origin, keyOf(i), outcome, basis)
}

func (f *fixture) orphan(i int) { f.end(i, "unknown", "reaper", "orphaned") }

func (f *fixture) get(i int) notifications.Notification {
	f.t.Helper()
	n, err := f.Get(f.t.Context(), f.ws, f.origin, keyOf(i))
	if err != nil {
		f.t.Fatal(err)
	}
	return n
}

func (f *fixture) counts() notifications.Counts {
	f.t.Helper()
	c, err := f.Counts(f.t.Context(), f.ws, f.origin)
	if err != nil {
		f.t.Fatal(err)
	}
	return c
}

func (f *fixture) count(sql string, args ...any) (n int) {
	f.t.Helper()
	if err := f.pool.QueryRow(f.t.Context(), sql, args...).Scan(&n); err != nil {
		f.t.Fatal(err)
	}
	return n
}

package notifications_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/notifications"
	"lemma/pgtest"
)

// Hold closes the gate of open batches, and Unhold opens it and enqueues them.
func TestHoldAndUnhold(t *testing.T) {
	f := setup(t)
	f.insert(recipients(30))
	f.Exec(`update batches set status = 'done', sent = size where id = (select id from batches limit 1)`)
	held := func() int { return f.Count(`select count(*) from batches where gate = 'held'`) }
	f.inTx(func(tx pgx.Tx) error { return f.Hold(t.Context(), tx, f.Workspace, f.origin) })
	if n := held(); n != 2 {
		t.Errorf("%d batches are held, want the two that have not ended", n)
	}
	f.Exec(`truncate river_job`)
	f.inTx(func(tx pgx.Tx) error { return f.Unhold(t.Context(), tx, f.Workspace, f.origin) })
	if n := held(); n != 0 {
		t.Errorf("%d batches are held", n)
	}
	f.WantCount(2, `select count(*) from river_job`)
}

// A cancel ends ready batches, and the rest of a leased one counts as cancelled. A
// second attempt is orphaned, since the first is unknown.
func TestCancel(t *testing.T) {
	f := setup(t)
	f.insert(recipients(30))
	f.Exec(`
		with ids as (select id, row_number() over (order by id) as n from batches)
		update batches b set status = 'leased', leased_by = 't', lease_until = now(), called_through = 3, calling = 4
		from ids where b.id = ids.id and ids.n = 1`)
	f.Exec(`
		insert into attempts (workspace_id, batch_id, ordinal, attempt, outcome, final, basis)
		select workspace_id, id, 0, 1, 'unknown', false, 'reaper' from batches where status = 'ready' order by id limit 1`)
	f.Exec(`update batches b set retried = 1, open = '{1,2,3,4,5,6,7,8,9}' from attempts a where b.id = a.batch_id`)
	f.Exec(`
		insert into batches (workspace_id, origin_id, id, root_id, provider_id, content_id, size, attempt, max_attempts, open, members)
		select workspace_id, origin_id, gen_random_uuid(), id, provider_id, content_id, 1, 2, 2, '{0}', '{0}' from batches where retried = 1`)
	var found notifications.Cancelled
	f.inTx(func(tx pgx.Tx) (err error) { found, err = f.Cancel(t.Context(), tx, f.Workspace, f.origin); return err })
	if want := (notifications.Cancelled{InFlight: 4, Cancelled: 6 + 9 + 10}); found != want {
		t.Errorf("a cancel found %+v, want %+v", found, want)
	}
	f.WantCount(0, `select count(*) from batches where status = 'ready' or gate <> 'cancelled'`)
	c := f.counts()
	if c.Cancelled != 19 || c.Orphaned != 1 || c.Processing != 4 || c.Pending != 6 || !c.Balanced {
		t.Errorf("%+v", c)
	}
}

// A batch that ends while a pause or a cancel waits for it may have left another, and that one
// the next: all of them are behind the gate.
func TestAGateClosesWhatIsMadeMeanwhile(t *testing.T) {
	const end = `update batches set status = 'done', sent = size, finished_at = now() where id = $1`
	const makeNext = `
		insert into batches (workspace_id, origin_id, id, root_id, provider_id, content_id, size, max_attempts)
		select workspace_id, origin_id, n.id, n.id, provider_id, content_id, size, max_attempts
		from batches cross join (select gen_random_uuid() as id) n where batches.id = $1 returning id`
	for name, close := range map[string]func(f *fixture) func(pgx.Tx) error{
		"pause": func(f *fixture) func(pgx.Tx) error { return f.hold },
		"cancel": func(f *fixture) func(pgx.Tx) error {
			return func(tx pgx.Tx) error { _, err := f.Cancel(t.Context(), tx, f.Workspace, f.origin); return err }
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := setup(t)
			f.insert(recipients(20))
			ids := pgtest.Column[uuid.UUID](f.T, f.Pool, `select id from batches order by id`)
			first, err := f.Pool.Begin(t.Context())
			f.Must(err)
			_, err = first.Exec(t.Context(), `select from batches where id = $1 for update`, ids[0])
			f.Must(err)
			closed := make(chan error, 1)
			go func() { closed <- pgx.BeginFunc(context.Background(), f.Pool, close(f)) }()
			f.WaitForLocks(1)
			var next uuid.UUID
			f.inTx(func(tx pgx.Tx) error {
				f.Must(tx.QueryRow(t.Context(), makeNext, ids[1]).Scan(&next))
				_, err := tx.Exec(t.Context(), end, ids[1])
				return err
			})
			f.inTx(func(tx pgx.Tx) error {
				f.Must(tx.QueryRow(t.Context(), makeNext, next).Scan(new(uuid.UUID)))
				_, err := tx.Exec(t.Context(), end, next)
				f.Must(err)
				f.Must(first.Rollback(t.Context()))
				f.WaitForLocks(1)
				return nil
			})
			f.Must(<-closed)
			f.WantCount(0, `select count(*) from batches where status in ('ready', 'leased') and gate = 'open'`)
			f.WantCount(2, `select count(*) from batches where gate <> 'open'`)
		})
	}
}

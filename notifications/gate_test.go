package notifications_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"lemma/notifications"
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

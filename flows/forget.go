package flows

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
	"lemma/flows/enrollment"
	"lemma/loop"
	"lemma/pgerr"
)

const (
	forgetChunk   = 5_000  // rows that are deleted in one transaction
	forgetBlocked = 3      // chunks in a row that wait for too long, until a run ends: a lock blocks them all
	forgetPage    = 50_000 // rows that are read by one statement, and those of the same time as the last
)

// Forget deletes events and refusals past their retention, and returns how many. An event
// stays while its profile has an active enrollment that began before it, or that has not
// entered: events behind it may be offered again, and so their refusals stay too. It also
// stays while an experiment that counts it has no verdict. Chunks are small, so that no other
// statement waits long. Several processes may run it at once.
func (f *Flows) Forget(ctx context.Context) (int64, error) {
	events, err := f.forget(ctx, f.findEvents, `delete from trigger_events e using unnest($1::uuid[], $2::uuid[], $3::uuid[])
		as r (workspace_id, key, flow_id) where e.workspace_id = r.workspace_id and e.key = r.key`)
	failed := lemma.Wrap(err, "forget events")
	refused, err := f.forget(ctx, f.findRefusals, `delete from refusals e using unnest($1::uuid[], $2::uuid[], $3::uuid[])
		as r (workspace_id, key, flow_id) where e.workspace_id = r.workspace_id and e.flow_id = r.flow_id and e.key = r.key`)
	return events + refused, errors.Join(failed, lemma.Wrap(err, "forget refusals"))
}

// entersLater finds the enrollment of the refusal v if it has not entered. One that has
// entered or ended is never refused, so that nothing offers its refusals again.
const entersLater = `select true from enrollments e where e.workspace_id = v.workspace_id and e.id = v.enrollment_id
	and e.ended_at is null and e.node = '' limit 1`

// aged are the keys of rows to delete, column by column.
type aged struct{ workspaces, keys, flows []pgtype.UUID }

func (a *aged) add(ws, key, flow pgtype.UUID) {
	a.workspaces, a.keys, a.flows = append(a.workspaces, ws), append(a.keys, key), append(a.flows, flow)
}

// keptFor is the longest retention of events that a process has, or had: that of this one is
// parameter 1.
const keptFor = `greatest($1::interval, (select max(value::interval) from settings where name = 'LEMMA_EVENT_RETENTION'))`

// finder reads the next page of rows after a time, and sets it to that of the last. It returns
// the rows to delete, and how many it read.
type finder func(ctx context.Context, after *pgtype.Timestamptz) (a aged, read int, err error)

// forget reads all rows past the retention, the oldest first, page by page, and deletes
// those that need not stay. It reads each row once: rows that stay, and chunks that cannot be
// deleted, hold up no others. A lock on the table blocks all chunks, each until its
// statement_timeout, so forgetBlocked such chunks end it.
func (f *Flows) forget(ctx context.Context, find finder, remove string) (gone int64, err error) {
	after := pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
	var failed loop.Errors
	for blocked := 0; ; {
		old, read, err := find(ctx, &after)
		if err != nil {
			return gone, errors.Join(failed.Err(), err)
		}
		n, err := f.deleteAged(ctx, remove, old, &blocked)
		gone += n
		if failed.Add(err); ctx.Err() != nil || read < f.forgetPage || blocked >= forgetBlocked {
			return gone, failed.Err()
		}
	}
}

// findRefusals is the finder of refusals.
func (f *Flows) findRefusals(ctx context.Context, after *pgtype.Timestamptz) (a aged, read int, err error) {
	rows, _ := f.pool.Query(ctx, `
		select workspace_id, key, flow_id, at, (`+entersLater+`) is null from (
			select workspace_id, key, flow_id, enrollment_id, at from refusals where at > $2 and at < now() - `+keptFor+`
			order by at fetch first ($3::int) rows with ties
		) v`, f.cfg.Retention, *after, f.forgetPage)
	var ws, key, flow pgtype.UUID
	var at pgtype.Timestamptz
	var remove bool
	_, err = pgx.ForEachRow(rows, []any{&ws, &key, &flow, &at, &remove}, func() error {
		read++
		*after = at
		if remove {
			a.add(ws, key, flow)
		}
		return nil
	})
	return a, read, err
}

// deleteAged deletes rows chunk by chunk. One that fails does not stop the others. blocked is how
// many waited for too long, one after another; after forgetBlocked of them it stops.
func (f *Flows) deleteAged(ctx context.Context, remove string, old aged, blocked *int) (gone int64, err error) {
	var chunks []aged
	for at := 0; at < len(old.keys); at += forgetChunk {
		end := min(at+forgetChunk, len(old.keys))
		chunks = append(chunks, aged{old.workspaces[at:end], old.keys[at:end], old.flows[at:end]})
	}
	err = loop.Each(ctx, chunks, func(c aged) error {
		if *blocked >= forgetBlocked {
			return nil
		}
		err := enrollment.Transact(ctx, f.pool, func(tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, remove, c.workspaces, c.keys, c.flows)
			gone += tag.RowsAffected()
			return err
		})
		if *blocked++; !pgerr.Is(err, pgerr.LockTimeout, "57014") { // a timeout of a lock, of the statement
			*blocked = 0
		}
		return err
	})
	return gone, err
}

package flows

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/flows/enrollment"
	"lemma/lifecycle"
	"lemma/loop"
)

// Defaults of resuming.
const (
	defaultCatchUp = 10 * time.Minute // or the pause's length, if that is less
	maxCatchUp     = 24 * time.Hour
)

// Pause stops a flow. Once it returns, triggers are refused, no enrollment advances
// and no window of its notifications opens. Enrollments can still be moved or ended
// manually, and a version published.
func (f *Flows) Pause(ctx context.Context, ws, flow uuid.UUID, by *Actor) (Flow, error) {
	_, err := f.stop(ctx, ws, flow, by, lifecycle.Cause{})
	return f.finish(ctx, ws, flow, by, err)
}

// PauseFor pauses the flow that an origin of notifications belongs to, for a reason of
// Lemma's own, such as a provider that fails. found is false if the origin belongs to no
// flow. Of an archived flow, the unsent messages of provider are cancelled: see cancelUnsent.
// A flow that is paused, or was resumed after the cause, does not change.
func (f *Flows) PauseFor(ctx context.Context, ws, origin, provider uuid.UUID, cause lifecycle.Cause) (found, paused bool, err error) {
	var flow uuid.UUID
	rows, _ := f.pool.Query(ctx, `select flow_id from flow_origins where workspace_id = $1 and origin_id = $2`, ws, origin)
	flows, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil || len(flows) == 0 {
		return false, false, err
	}
	flow = flows[0]
	if paused, err = f.stop(ctx, ws, flow, nil, cause); err != nil && lemma.KindOf(err) == lemma.WrongStatus {
		err = f.cancelUnsent(ctx, ws, flow, provider, cause.Reason, cause.Detail)
	}
	return true, paused, err
}

// stop pauses a flow, unless it was resumed after the cause.
func (f *Flows) stop(ctx context.Context, ws, flow uuid.UUID, by *Actor, cause lifecycle.Cause) (stopped bool, err error) {
	err = enrollment.Transact(ctx, f.pool, func(tx pgx.Tx) error {
		was, err := lockForVerb(ctx, tx, ws, flow, pause, nil)
		if err != nil || cause.EndedBy(was.ResumedAt) {
			return err
		}
		err = change(ctx, tx, ws, flow, pause, `status = 'paused', status_reason = nullif($4, ''), status_detail = nullif($5, ''),
			paused_at = now(), resumed_at = null, catch_up_until = case when catch_up_until > now() then catch_up_until end`,
			cause.Reason, cause.Detail)
		if err != nil {
			return err
		}
		if err := eachOrigin(ctx, tx, ws, flow, f.ledger.Hold); err != nil {
			return err
		}
		about := map[string]any{"was": was.Status}
		if cause.Reason != "" {
			about["reason"], about["detail"] = cause.Reason, cause.Detail
		}
		stopped = true
		return endVerb(ctx, tx, ws, flow, wasPaused, by, about)
	})
	if err != nil {
		return false, answered(err, fmt.Sprintf("pause flow %s", flow))
	}
	return stopped, nil
}

// eachOrigin opens or closes the gate of all notifications of a flow.
func eachOrigin(ctx context.Context, tx pgx.Tx, ws, flow uuid.UUID, gate func(ctx context.Context, tx pgx.Tx, ws,
	origin uuid.UUID) error) error {
	rows, _ := tx.Query(ctx, `select origin_id from flow_origins where workspace_id = $1 and flow_id = $2 order by origin_id`, ws, flow)
	origins, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return err
	}
	for _, origin := range origins {
		if err := gate(ctx, tx, ws, origin); err != nil {
			return err
		}
	}
	return nil
}

// Resume ends a pause and restores the status before it, or ends a drain. Enrollments that
// became due in the pause are released evenly over catchUp, the earliest first; with nil,
// over as long as the pause lasted, but ten minutes at most. A pause within a longer
// release continues what was left of it.
func (f *Flows) Resume(ctx context.Context, ws, flow uuid.UUID, catchUp *time.Duration, by *Actor) (Flow, error) {
	if catchUp != nil && (*catchUp < 0 || *catchUp > maxCatchUp) {
		return Flow{}, lemma.Fault("/catch_up", "out_of_range", "must be 0 to 24 hours")
	}
	err := enrollment.Transact(ctx, f.pool, func(tx pgx.Tx) error {
		was, err := lockForVerb(ctx, tx, ws, flow, resume, nil)
		if err != nil {
			return err
		}
		to := Live
		if was.Status == Paused {
			if to, err = statusBefore(ctx, tx, ws, flow); err != nil {
				return err
			}
			if err := f.release(ctx, tx, ws, flow, resume, to, catchUp); err != nil {
				return err
			}
		} else if err := change(ctx, tx, ws, flow, resume, `status = 'live'`); err != nil {
			return err
		}
		return endVerb(ctx, tx, ws, flow, wasResumed, by, map[string]any{"was": was.Status, "status": to})
	})
	if err != nil {
		return f.finish(ctx, ws, flow, by, answered(err, fmt.Sprintf("resume flow %s", flow)))
	}
	f.waker.WakeAll()
	return f.Get(ctx, ws, flow)
}

// statusBefore is the status of a flow before its pause.
func statusBefore(ctx context.Context, tx pgx.Tx, ws, flow uuid.UUID) (was Status, err error) {
	err = tx.QueryRow(ctx, `
		select coalesce((select detail->>'was' from flow_log where workspace_id = $1 and flow_id = $2 and action = 'paused'
			order by at desc, id desc limit 1), 'live')`, ws, flow).Scan(&was)
	return was, err
}

// release ends a pause. It changes no enrollment: when each is due follows from the flow's
// row.
func (f *Flows) release(ctx context.Context, tx pgx.Tx, ws, flow uuid.UUID, v verb, to Status, catchUp *time.Duration) error {
	err := change(ctx, tx, ws, flow, v, `status = $4, status_reason = null, status_detail = null, resumed_at = now(),
		catch_up_until = now() + coalesce($5::interval, greatest(least($6::interval, now() - paused_at), catch_up_until - paused_at))`,
		to, catchUp, defaultCatchUp)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `
		update flow_shards t set released = 0, held = (select count(*) from (select from enrollments e
			where e.workspace_id = t.workspace_id and e.shard = t.shard and e.flow_id = t.flow_id and e.resume_at <= now()
			order by e.resume_at) e)
		where workspace_id = $1 and flow_id = $2`, ws, flow)
	if err != nil {
		return fmt.Errorf("count enrollments that became due in the pause: %w", err)
	}
	return eachOrigin(ctx, tx, ws, flow, f.ledger.Unhold)
}

// Drain stops enrolling; active enrollments continue to their end, and then, when their
// messages are sent, the flow is archived. It ends a pause.
func (f *Flows) Drain(ctx context.Context, ws, flow uuid.UUID, by *Actor) (Flow, error) {
	err := enrollment.Transact(ctx, f.pool, func(tx pgx.Tx) error {
		was, err := lockForVerb(ctx, tx, ws, flow, drain, nil)
		if err != nil {
			return err
		}
		if was.Status == Paused {
			err = f.release(ctx, tx, ws, flow, drain, Draining, nil)
		} else {
			err = change(ctx, tx, ws, flow, drain, `status = 'draining'`)
		}
		if err != nil {
			return err
		}
		return endVerb(ctx, tx, ws, flow, wasDrained, by, map[string]any{"was": was.Status})
	})
	if err != nil {
		return f.finish(ctx, ws, flow, by, answered(err, fmt.Sprintf("drain flow %s", flow)))
	}
	f.waker.WakeAll()
	return f.Get(ctx, ws, flow)
}

// Archive ends a flow. Once it returns nothing enrolls or advances, and active enrollments
// exit in chunks. Messages that were written are still sent.
func (f *Flows) Archive(ctx context.Context, ws, flow uuid.UUID, by *Actor) (Flow, error) {
	err := enrollment.Transact(ctx, f.pool, func(tx pgx.Tx) error {
		was, err := lockForVerb(ctx, tx, ws, flow, archive, nil)
		if err != nil {
			return err
		}
		if err := change(ctx, tx, ws, flow, archive, `status = 'archived', status_reason = null, status_detail = null`); err != nil {
			return err
		}
		if was.Status == Paused {
			if err := eachOrigin(ctx, tx, ws, flow, f.ledger.Unhold); err != nil {
				return err
			}
		}
		if err := unuse(ctx, tx, ws, flow); err != nil {
			return err
		}
		if err := endMoves(ctx, tx, ws, flow); err != nil {
			return err
		}
		if was.Status != Draft {
			if err := startMove(ctx, tx, ws, flow, nil, nil, enrollment.ExitArchived); err != nil {
				return err
			}
		}
		return endVerb(ctx, tx, ws, flow, wasArchived, by, map[string]any{"was": was.Status})
	})
	if err != nil {
		return f.finish(ctx, ws, flow, by, answered(err, fmt.Sprintf("archive flow %s", flow)))
	}
	f.waker.WakeAll()
	return f.Get(ctx, ws, flow)
}

// noneActive is true of a flow f without active enrollments and without unsent messages:
// while it is draining, a provider that fails pauses it and cancels nothing. Enrollments
// are searched shard by shard, and batches origin by origin: see "first row by a
// subquery" in enrollment/plans.go.
const noneActive = `not exists (select from flow_shards t where t.workspace_id = f.workspace_id and t.flow_id = f.id
	and (select e.resume_at from enrollments e where e.workspace_id = t.workspace_id and e.shard = t.shard and e.flow_id = t.flow_id
		and e.resume_at is not null order by e.resume_at limit 1) is not null)
	and not exists (select from flow_origins o where o.workspace_id = f.workspace_id and o.flow_id = f.id
		and (select b.id from batches b where b.workspace_id = o.workspace_id and b.origin_id = o.origin_id
			and b.status in ('ready', 'leased') order by b.id limit 1) is not null)`

// drainedPage is how many draining flows archiveDrained reads, so that many that drain for
// months cost no more than a few.
const drainedPage = 200

// flowRef is a flow as the place of a position.
type flowRef struct{ WorkspaceID, ID uuid.UUID }

// archiveDrained archives draining flows without active enrollments and open messages,
// among the next page of draining flows.
func (f *Flows) archiveDrained(ctx context.Context) error {
	after := flowRef{}
	if last := f.drained.Load(); last != nil {
		after = *last
	}
	rows, _ := f.pool.Query(ctx, `
		select f.workspace_id, f.id, `+noneActive+` from (
			select workspace_id, id from flows where status = 'draining' and (workspace_id, id) > ($1, $2)
			order by workspace_id, id limit $3
		) f order by f.workspace_id, f.id`, after.WorkspaceID, after.ID, drainedPage)
	var r flowRef
	var is bool
	var empties []flowRef
	read, err := pgx.ForEachRow(rows, []any{&r.WorkspaceID, &r.ID, &is}, func() error {
		if is {
			empties = append(empties, r)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("find drained flows: %w", err)
	}
	if last := r; read.RowsAffected() == drainedPage {
		f.drained.Store(&last)
	} else {
		f.drained.Store(nil) // from the first one
	}
	return f.archiveAll(ctx, empties)
}

// archiveAll archives draining flows that are still empty under their lock.
func (f *Flows) archiveAll(ctx context.Context, empties []flowRef) error {
	return loop.Each(ctx, empties, func(r flowRef) error {
		err := enrollment.Transact(ctx, f.pool, func(tx pgx.Tx) error {
			if err := enrollment.WaitBriefly(ctx, tx, true); err != nil {
				return err
			}
			if _, err := lockForVerb(ctx, tx, r.WorkspaceID, r.ID, empty, nil); err != nil {
				return err
			}
			tag, err := tx.Exec(ctx, `
				update flows f set status = 'archived', version = version + 1, updated_at = now()
				where workspace_id = $1 and id = $2 and status = 'draining'
				and `+noneActive, r.WorkspaceID, r.ID)
			if err != nil || tag.RowsAffected() == 0 {
				return err
			}
			if err := errors.Join(unuse(ctx, tx, r.WorkspaceID, r.ID), unlisten(ctx, tx, r.WorkspaceID, r.ID)); err != nil {
				return err
			}
			return endVerb(ctx, tx, r.WorkspaceID, r.ID, wasArchived, nil, map[string]any{"was": Draining})
		})
		if err != nil && lemma.KindOf(err) != lemma.WrongStatus && !enrollment.Locked(err) { // another process archived it, or it was resumed
			return fmt.Errorf("archive flow %s: %w", r.ID, err)
		}
		return nil
	})
}

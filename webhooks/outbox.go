package webhooks

import (
	"bytes"
	"context"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
)

// MaxBody bounds a message's body, in bytes: Write refuses what is longer.
const MaxBody = 1 << 20

// Write puts messages down in the caller's transaction: they go out if it
// commits. A message that is there already is left as it is.
func (w *Webhooks) Write(ctx context.Context, tx pgx.Tx, all []Message) error {
	if len(all) == 0 {
		return nil
	}
	var ws, ids, endpoints, enrollments []pgtype.UUID
	var bodies []string
	var steps []int
	for _, m := range all {
		if err := checkBody(m.Body); err != nil {
			return fmt.Errorf("write message %s: %w", m.ID, err)
		}
		ws, ids, endpoints = append(ws, given(m.WorkspaceID)), append(ids, given(m.ID)), append(endpoints, given(m.EndpointID))
		enrollments = append(enrollments, pgtype.UUID{Bytes: m.EnrollmentID, Valid: m.EnrollmentID != uuid.Nil})
		bodies, steps = append(bodies, string(m.Body)), append(steps, m.Step)
	}
	_, err := tx.Exec(ctx, `
		insert into outbox (workspace_id, id, endpoint_id, body, enrollment_id, step)
		select ws, id, endpoint, body, enrollment, case when enrollment is not null then step end
		from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::uuid[], $6::int[]) as m (ws, id, endpoint, body, enrollment, step)
		on conflict (workspace_id, id) do nothing`, ws, ids, endpoints, bodies, enrollments, steps)
	if err != nil {
		return fmt.Errorf("write messages: %w", err)
	}
	return nil
}

func given(id uuid.UUID) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: true} }

func allGiven(ids []uuid.UUID) []pgtype.UUID {
	all := make([]pgtype.UUID, len(ids))
	for i, id := range ids {
		all[i] = given(id)
	}
	return all
}

// checkBody refuses what the table could not give back as it is.
func checkBody(body []byte) error {
	switch {
	case len(body) > MaxBody:
		return fmt.Errorf("the body has %d bytes; %d are allowed", len(body), MaxBody)
	case !utf8.Valid(body) || bytes.IndexByte(body, 0) >= 0:
		return fmt.Errorf("the body is not UTF-8 or holds a NUL")
	}
	return nil
}

// MessageID is the webhook-id that a message goes out under.
func MessageID(id uuid.UUID) string { return lemma.FormatID("msg", id) }

// oneByOne are the ids of $2, each looked up by itself, by the whole primary key:
// of an any() a planner without statistics may think that reading the workspace
// is cheaper. For the same reason a message that has ended is looked up by its
// finished_at: its state would bring other indexes to mind.
const oneByOne = `(select unnest($2::uuid[]) as id) r cross join lateral`

const outcomeColumns = `workspace_id, id, coalesce(enrollment_id, '00000000-0000-0000-0000-000000000000') as enrollment_id, coalesce(step, 0) as step,
	status = 'delivered' as delivered, coalesce(status_code, 0) as status, coalesce(last_error, '') as error, attempts`

// Outcomes reads what came of those messages that have ended.
func (w *Webhooks) Outcomes(ctx context.Context, ws uuid.UUID, ids []uuid.UUID) (map[uuid.UUID]Outcome, error) {
	rows, _ := w.pool.Query(ctx, `
		select o.* from `+oneByOne+` (
			select `+outcomeColumns+` from outbox where workspace_id = $1 and id = r.id and finished_at is not null limit 1
		) o`, ws, allGiven(ids))
	found, err := pgx.CollectRows(rows, pgx.RowToStructByName[Outcome])
	if err != nil {
		return nil, fmt.Errorf("read outcomes of messages: %w", err)
	}
	byID := make(map[uuid.UUID]Outcome, len(found))
	for _, o := range found {
		byID[o.ID] = o
	}
	return byID, nil
}

// Pending tells which of those messages are still on their way. Whoever asks
// this first and for Outcomes then knows that what is in neither is gone: the
// other way round, a message may end between the two.
func (w *Webhooks) Pending(ctx context.Context, ws uuid.UUID, ids []uuid.UUID) (map[uuid.UUID]bool, error) {
	rows, _ := w.pool.Query(ctx, `
		select o.id from `+oneByOne+` (select id from outbox where workspace_id = $1 and id = r.id and finished_at is null limit 1) o`, ws, allGiven(ids))
	found, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("read which messages are pending: %w", err)
	}
	pending := make(map[uuid.UUID]bool, len(found))
	for _, id := range found {
		pending[id] = true
	}
	return pending, nil
}

// Erase takes away what was or is to be said on behalf of enrollments, in the
// caller's transaction. Messages that are being called right now stay, and are
// counted: asked again later, they go too.
func (w *Webhooks) Erase(ctx context.Context, tx pgx.Tx, ws uuid.UUID, enrollments []uuid.UUID) (erased, inFlight int64, err error) {
	of := allGiven(enrollments)
	gone, err := tx.Exec(ctx, `
		delete from outbox where workspace_id = $1 and enrollment_id = any($2)
		  and (lease_until is null or lease_until <= now())`, ws, of)
	if err != nil {
		return 0, 0, fmt.Errorf("erase messages: %w", err)
	}
	err = tx.QueryRow(ctx, `select count(*) from outbox where workspace_id = $1 and enrollment_id = any($2)`, ws, of).Scan(&inFlight)
	if err != nil {
		return 0, 0, fmt.Errorf("count messages in flight: %w", err)
	}
	return gone.RowsAffected(), inFlight, nil
}

// cleanLot is how many rows one statement of Clean deletes.
const cleanLot = 5000

// Clean deletes messages that ended longer ago than Keep, in lots, and answers
// with how many. Until then the id of a message is known, and written again it
// is not said again. What an enrollment may have yet to read stays: a flow may
// be paused for longer, and those who wait in it be moved to another version,
// which is a step, and wait there for the same answer. So any wait keeps it.
func (w *Webhooks) Clean(ctx context.Context) (int64, error) {
	var total int64
	for {
		gone, err := w.pool.Exec(ctx, `
			delete from outbox where ctid = any(array(
				select o.ctid from outbox o
				where o.status <> 'pending' and o.finished_at < now() - $1::interval and (
					select true from enrollments e
					where e.workspace_id = o.workspace_id and e.id = o.enrollment_id and e.ended_at is null and e.waiting_since is not null limit 1) is null
				order by o.finished_at limit $2 for update of o skip locked))`, w.options.Keep, cleanLot)
		if err != nil {
			return total, fmt.Errorf("clean the outbox: %w", err)
		}
		total += gone.RowsAffected()
		if gone.RowsAffected() < cleanLot {
			return total, nil
		}
	}
}

// cleanEvery is how often Loop cleans.
const cleanEvery = time.Hour

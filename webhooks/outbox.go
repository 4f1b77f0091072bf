package webhooks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
)

// MaxBody is the longest body of a message, in bytes.
const MaxBody = 1 << 20

// Write inserts messages in the caller's transaction. They are sent if it commits.
// A message that exists already is left unchanged.
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
		ws, ids, endpoints = append(ws, pgUUID(m.WorkspaceID)), append(ids, pgUUID(m.ID)), append(endpoints, pgUUID(m.EndpointID))
		enrollments = append(enrollments, pgtype.UUID{Bytes: m.EnrollmentID, Valid: m.EnrollmentID != uuid.Nil})
		bodies, steps = append(bodies, string(m.Body)), append(steps, m.Step)
	}
	_, err := tx.Exec(ctx, `
		insert into outbox (workspace_id, id, endpoint_id, body, enrollment_id, step)
		select ws, id, endpoint, body, enrollment, case when enrollment is not null then step end
		from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::uuid[], $6::int[]) as m (ws, id, endpoint, body, enrollment, step)
		on conflict (workspace_id, id) do nothing`, ws, ids, endpoints, bodies, enrollments, steps)
	return lemma.Wrap(err, "write messages")
}

func pgUUID(id uuid.UUID) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: true} }

func pgUUIDs(ids []uuid.UUID) []pgtype.UUID {
	all := make([]pgtype.UUID, len(ids))
	for i, id := range ids {
		all[i] = pgUUID(id)
	}
	return all
}

// checkBody refuses a body that the table cannot store unchanged.
func checkBody(body []byte) error {
	switch {
	case len(body) > MaxBody:
		return fmt.Errorf("the body must have at most %d bytes; it has %d", MaxBody, len(body))
	case !utf8.Valid(body) || bytes.IndexByte(body, 0) >= 0:
		return errors.New("the body must be UTF-8 without NUL")
	}
	return nil
}

// MessageID is the webhook-id of a message.
func MessageID(id uuid.UUID) string { return lemma.FormatID("msg", id) }

// ParseMessageID parses a webhook-id. It returns false for any other text.
func ParseMessageID(text string) (uuid.UUID, bool) { return lemma.ParseID("msg", text) }

// oneByOne reads each id of $2 by the whole primary key. For an any() a planner
// without statistics may prefer to read the whole workspace. For the same reason the
// queries test finished_at instead of status, which would match other indexes.
const oneByOne = `(select unnest($2::uuid[]) as id) r cross join lateral`

const outcomeColumns = `workspace_id, id,
	coalesce(enrollment_id, '00000000-0000-0000-0000-000000000000') as enrollment_id, coalesce(step, 0) as step,
	status = 'delivered' as delivered, coalesce(status_code, 0) as status, coalesce(last_error, '') as error, attempts`

// Outcomes reads the outcomes of messages that have ended, by id.
func (w *Webhooks) Outcomes(ctx context.Context, ws uuid.UUID, ids []uuid.UUID) (map[uuid.UUID]Outcome, error) {
	rows, _ := w.pool.Query(ctx, `
		select o.workspace_id, o.id, o.enrollment_id, o.step, o.delivered, o.status, o.error, o.attempts from `+oneByOne+` (
			select `+outcomeColumns+` from outbox where workspace_id = $1 and id = r.id and finished_at is not null limit 1
		) o`, ws, pgUUIDs(ids))
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

// Pending reports which messages have not ended. Call it before Outcomes: then a
// message that is in neither result is deleted. In the other order, a message may
// end between the two.
func (w *Webhooks) Pending(ctx context.Context, ws uuid.UUID, ids []uuid.UUID) (map[uuid.UUID]bool, error) {
	rows, _ := w.pool.Query(ctx, `
		select o.id from `+oneByOne+` (
			select id from outbox where workspace_id = $1 and id = r.id and finished_at is null limit 1
		) o`, ws, pgUUIDs(ids))
	found, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("read pending messages: %w", err)
	}
	pending := make(map[uuid.UUID]bool, len(found))
	for _, id := range found {
		pending[id] = true
	}
	return pending, nil
}

// Erase deletes the messages of enrollments in the caller's transaction. Messages
// that are being called stay, and inFlight has the enrollment of each; a later call deletes them.
func (w *Webhooks) Erase(ctx context.Context, tx pgx.Tx, ws uuid.UUID, enrollments []uuid.UUID) (
	erased int64, inFlight []uuid.UUID, err error) {
	of := pgUUIDs(enrollments)
	deleted, err := tx.Exec(ctx, `
		delete from outbox where workspace_id = $1 and enrollment_id = any($2)
		  and (lease_until is null or lease_until <= now())`, ws, of)
	if err != nil {
		return 0, nil, fmt.Errorf("erase messages: %w", err)
	}
	rows, _ := tx.Query(ctx, `select enrollment_id from outbox where workspace_id = $1 and enrollment_id = any($2)`, ws, of)
	inFlight, err = pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	return deleted.RowsAffected(), inFlight, lemma.Wrap(err, "find messages in flight")
}

// cleanPage is how many rows one statement of Clean reads, besides those of the same time as
// the last.
const cleanPage = 1000

// Clean deletes messages that ended longer ago than Keep, and returns how many. Until then
// the id is known, so that a message that is written again is not sent again. It deletes
// published events after it, also if messages could not be deleted.
func (w *Webhooks) Clean(ctx context.Context) (int64, error) {
	messages, err := w.cleanMessages(ctx)
	return messages, errors.Join(err, w.cleanEvents(ctx))
}

// cleanMessages keeps a message whose enrollment waits: the flow may be paused, or the
// enrollment moved to another version, where it waits for the same answer.
func (w *Webhooks) cleanMessages(ctx context.Context) (int64, error) {
	gone, err := w.cleanPages(ctx, `
		with page as materialized (
			select o.at, o.place, (
				select true from enrollments e
				where e.workspace_id = o.workspace_id and e.id = o.enrollment_id
					and e.ended_at is null and e.waiting_since is not null limit 1) is null as remove
			from (
				select finished_at as at, ctid as place, workspace_id, enrollment_id from outbox
				where status <> 'pending' and finished_at > $2 and finished_at < now() - $1::interval
				order by finished_at fetch first ($3::int) rows with ties
			) o
		), gone as (
			delete from outbox where ctid = any(array(
				select ctid from outbox where ctid = any(array(select place from page where remove))
				for update skip locked))
			returning 1
		)
		select (select count(*) from gone), count(*), max(at) from page`, w.options.Keep)
	return gone, lemma.Wrap(err, "clean the outbox")
}

// cleanEvents deletes events that were published longer ago than twice Keep, and whose data
// no message needs any more: one that was sent again is kept longer.
func (w *Webhooks) cleanEvents(ctx context.Context) error {
	_, err := w.cleanPages(ctx, `
		with page as materialized (
			select e.at, e.place, (
				select true from outbox o where o.workspace_id = e.workspace_id and o.body_of = e.id limit 1) is null as remove
			from (
				select published_at as at, ctid as place, workspace_id, id from events_out
				where published_at > $2 and published_at < now() - $1::interval
				order by published_at fetch first ($3::int) rows with ties
			) e
		), gone as (
			delete from events_out where ctid = any(array(
				select ctid from events_out where ctid = any(array(select place from page where remove))
				for update skip locked))
			returning 1
		)
		select (select count(*) from gone), count(*), max(at) from page`, 2*w.options.Keep)
	return lemma.Wrap(err, "clean published events")
}

// cleanPages reads all rows that are older than an age, the oldest first, page by page, and
// deletes those that need not stay. The statement returns how many it deleted and read, and
// the time of the last. Each row is read once: rows that stay hold up no others. A row that
// changes meanwhile stays: the statement does not see its new version.
func (w *Webhooks) cleanPages(ctx context.Context, sql string, age time.Duration) (gone int64, err error) {
	after := pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
	for {
		var deleted int64
		var read int
		if err := w.pool.QueryRow(ctx, sql, age, after, w.cleanPage).Scan(&deleted, &read, &after); err != nil {
			return gone, err
		}
		gone += deleted
		if read < w.cleanPage {
			return gone, nil
		}
	}
}

// cleanEvery is how often Loop cleans.
const cleanEvery = time.Hour

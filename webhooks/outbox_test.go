package webhooks

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Outbox!NoMessageWithoutChange, Outbox!NoDuplicatedProcessing.
func TestWrittenOnceOrNotAtAll(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	e, _ := b.endpoint("/")
	m := b.message(e)
	gone := errors.New("the change did not happen")
	err := pgx.BeginFunc(t.Context(), b.Pool, func(tx pgx.Tx) error {
		return errors.Join(b.Write(t.Context(), tx, []Message{m}), gone)
	})
	if !errors.Is(err, gone) {
		t.Fatal(err)
	}
	b.run(b.Webhooks, 0)
	other := m
	other.Body = []byte(`"another body"`)
	b.write(m, other)
	b.write(other)
	b.run(b.Webhooks, 1)
	b.write(other)
	b.run(b.Webhooks, 0)
	if requests := b.receiver.all(); len(requests) != 1 || requests[0].body != string(m.Body) {
		t.Errorf("%+v", requests)
	}
}

func TestBodiesThatAreRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for name, body := range map[string][]byte{
		"a NUL": []byte("\"\x00\""), "no UTF-8": {0xff}, "too long": bytes.Repeat([]byte("x"), MaxBody+1),
	} {
		err := pgx.BeginFunc(t.Context(), b.Pool, func(tx pgx.Tx) error {
			return b.Write(t.Context(), tx, []Message{{WorkspaceID: b.Workspace, ID: uuid.New(), Body: body}})
		})
		if err == nil {
			t.Errorf("%s was written", name)
		}
	}
	e, _ := b.endpoint("/")
	longest := b.message(e)
	longest.Body = bytes.Repeat([]byte("x"), MaxBody)
	b.write(longest)
	b.run(b.Webhooks, 1)
	if requests := b.receiver.all(); len(requests) != 1 || len(requests[0].body) != MaxBody {
		t.Errorf("%d calls", len(requests))
	}
}

// Outbox!PublishedAndCleaned.
func TestCleanDeletesEndedMessages(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	old, unread, fresh, waiting := b.written(), b.written(), b.written(), b.written()
	b.waits(unread)
	b.Exec(`update outbox set status = 'delivered', finished_at = now() where id <> $1`, waiting.ID)
	b.Exec(`update outbox set finished_at = now() - interval '8 days' where id = any($1)`, []uuid.UUID{old.ID, unread.ID})
	b.Exec(`update outbox set created_at = now() - interval '30 days' where id = $1`, waiting.ID)
	n, err := b.Clean(t.Context())
	b.Must(err)
	if n != 1 || b.Count(`select count(*) from outbox where id = any($1)`, []uuid.UUID{unread.ID, fresh.ID, waiting.ID}) != 3 {
		t.Errorf("%d rows were cleaned", n)
	}
	b.Exec(`update enrollments set step = step + 1, moved = true`) // moved to another version: it still waits
	if n, err := b.Clean(t.Context()); err != nil || n != 0 {
		t.Errorf("%d rows were cleaned before their answer was read, %v", n, err)
	}
	b.Exec(`update enrollments set step = step + 1, waiting_since = null`)
	if n, err := b.Clean(t.Context()); err != nil || n != 1 {
		t.Errorf("%d rows were cleaned once their answer was read, %v", n, err)
	}
}

// waits inserts the enrollment of a message, which waits at a node.
func (b bundle) waits(m Message) {
	b.T.Helper()
	b.Exec(`
		insert into enrollments (workspace_id, id, flow_id, version, shard, uniqueness_key, overlap_key, profile_key, node, step,
			waiting_since, resume_at, source)
		values ($1, $2, $2, 1, 0, $2, $2, 'ann', 'hook', $3, now(), now(), 'direct')`, b.Workspace, m.EnrollmentID, m.Step)
}

// Messages that are kept for enrollments that wait hold up no others, also if they fill
// pages. Some end at the same time.
func TestKeptMessagesHoldUpNoOthers(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.cleanPage = 7 // ends among messages of one time
	m := b.written()
	b.waits(m)
	b.Exec(`insert into outbox (workspace_id, id, endpoint_id, body, enrollment_id, step, status, finished_at)
		select $1, gen_random_uuid(), $2, '{}', case when i <= 95 then $3::uuid end, case when i <= 95 then 1 end, 'delivered',
			now() - interval '8 days' + i / 3 * interval '1 minute'
		from generate_series(1, 100) i`, b.Workspace, m.EndpointID, m.EnrollmentID)
	n, err := b.Clean(t.Context())
	b.Must(err)
	if n != 5 {
		t.Errorf("%d rows were cleaned", n)
	}
	b.WantCount(96, `select count(*) from outbox where enrollment_id = $1`, m.EnrollmentID)
}

// A message that another transaction has locked, such as one that is sent again, is left to
// the next pass. The others are deleted.
func TestCleanSkipsLockedMessages(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.cleanPage = 1
	locked := b.written()
	b.written()
	b.Exec(`update outbox set status = 'delivered', finished_at = now() - interval '8 days' - random() * interval '1 hour'`)
	b.Must(pgx.BeginFunc(t.Context(), b.Pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `update outbox set `+dueAgain+` where id = $1`, locked.ID)
		b.Must(err)
		n, err := b.Clean(t.Context())
		if n != 1 {
			t.Errorf("%d rows were cleaned", n)
		}
		return err
	}))
	b.WantCount(1, `select count(*) from outbox where id = $1 and status = 'pending'`, locked.ID)
}

// An enrollment that has ended does not read its answer.
func TestCleanDeletesMessagesOfEndedEnrollments(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	m := b.written()
	b.Exec(`
		insert into enrollments (workspace_id, id, flow_id, version, shard, uniqueness_key, overlap_key, profile_key, node, step,
			waiting_since, status, ended_at, source)
		values ($1, $2, $2, 1, 0, $2, $2, 'ann', 'hook', $3, now(), 'exited', now(), 'direct')`, b.Workspace, m.EnrollmentID, m.Step)
	b.Exec(`update outbox set status = 'delivered', finished_at = now() - interval '8 days'`)
	if n, err := b.Clean(t.Context()); err != nil || n != 1 {
		t.Errorf("%d rows were cleaned, %v", n, err)
	}
}

// Pending reports messages that wait or are called, and not those that ended or are deleted.
func TestPending(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	ended := b.written()
	b.run(b.Webhooks, 1)
	called, waits, gone := b.written(), b.written(), b.written()
	b.Exec(`update outbox set leased_by = 'x', lease_until = now() + interval '1 minute' where id = $1`, called.ID)
	b.Exec(`delete from outbox where id = $1`, gone.ID)
	ids := []uuid.UUID{ended.ID, called.ID, waits.ID, gone.ID}
	pending, err := b.Pending(t.Context(), b.Workspace, ids)
	b.Must(err)
	if diff := cmp.Diff(map[uuid.UUID]bool{called.ID: true, waits.ID: true}, pending); diff != "" {
		t.Error(diff)
	}
	outcomes, err := b.Outcomes(t.Context(), b.Workspace, ids)
	b.Must(err)
	if len(outcomes) != 1 || !outcomes[ended.ID].Delivered {
		t.Errorf("%+v", outcomes)
	}
	if others, err := b.Pending(t.Context(), uuid.New(), ids); err != nil || len(others) != 0 {
		t.Errorf("another workspace sees %v, %v", others, err)
	}
}

func TestErase(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	kept, waits, called := b.written(), b.written(), b.written()
	b.Exec(`update outbox set leased_by = 'x', lease_until = now() + interval '1 minute' where id = $1`, called.ID)
	b.Must(pgx.BeginFunc(t.Context(), b.Pool, func(tx pgx.Tx) error {
		erased, inFlight, err := b.Erase(t.Context(), tx, b.Workspace, []uuid.UUID{waits.EnrollmentID, called.EnrollmentID})
		if erased != 1 || !slices.Equal(inFlight, []uuid.UUID{called.EnrollmentID}) {
			t.Errorf("%d erased, %v in flight", erased, inFlight)
		}
		return err
	}))
	if b.Count(`select count(*) from outbox where id = any($1)`, []uuid.UUID{kept.ID, called.ID}) != 2 {
		t.Error("too many messages were deleted")
	}
}

package webhooks

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"lemma/pgtest"
)

// lockedBy makes settlements of a workspace wait for a lock, as for an enrollment that a transaction has locked,
// until release.
func (b bundle) lockedBy(workspace uuid.UUID) (release func()) {
	b.T.Helper()
	b.OnSettled(func(ctx context.Context, tx pgx.Tx, all []Outcome) error {
		for _, o := range all {
			if _, err := tx.Exec(ctx, `select from workspaces where id = $1 for update`, o.WorkspaceID); err != nil {
				return err
			}
		}
		return b.settled.add(ctx, tx, all)
	})
	holder, err := b.Pool.Begin(context.Background())
	b.Must(err)
	_, err = holder.Exec(context.Background(), `select from workspaces where id = $1 for no key update`, workspace)
	b.Must(err)
	return func() { b.Must(holder.Rollback(context.Background())) }
}

// A transaction that has locked the enrollments of a workspace delays the settlements of no other. Those of
// its own are apart then, and settled when it has ended.
func TestALockOfOneWorkspace(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	other := b
	other.Workspace = pgtest.Workspace(t, b.Pool)
	b.written()
	b.written()
	other.written()
	release := b.lockedBy(b.Workspace)
	taken, err := b.claim(t.Context())
	b.Must(err)
	var chunk []*settlement
	for _, m := range taken {
		chunk = append(chunk, &settlement{claimed: m, result: result{status: 200, final: true}})
	}
	locked := b.settleTogether(chunk)
	settled := without(chunk, locked)
	if len(locked) != 2 || len(settled) != 1 || settled[0].WorkspaceID != other.Workspace || settled[0].err != nil {
		t.Errorf("%d are locked, %d settled", len(locked), len(settled))
	}
	b.settler.ended(chunk, locked)
	if b.settler.apart[b.Workspace] == nil || len(b.settler.apart) != 1 || len(b.settled.list()) != 1 {
		t.Errorf("apart: %v, settled: %v", b.settler.apart, b.settled.list())
	}
	release()
	chunk, _ = b.settler.next()
	if locked = b.settleTogether(chunk); len(locked) > 0 || len(chunk) != 2 {
		t.Errorf("%d of %d are locked", len(locked), len(chunk))
	}
	for _, one := range chunk {
		if one.err != nil {
			t.Error(one.err)
		}
	}
}

// Of a workspace, only the messages whose enrollments are locked are settled later.
func TestALockOfOneEnrollment(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	locked := b.written()
	b.written()
	b.OnSettled(func(ctx context.Context, tx pgx.Tx, all []Outcome) error {
		for _, o := range all {
			if o.EnrollmentID == locked.EnrollmentID {
				_, err := tx.Exec(ctx, `do $$ begin raise exception using errcode = '55P03'; end $$`)
				return err
			}
		}
		return b.settled.add(ctx, tx, all)
	})
	b.run(b.Webhooks, 2)
	if all := b.settled.list(); len(all) != 1 || all[0].EnrollmentID == locked.EnrollmentID {
		t.Errorf("%+v", all)
	}
}

// An answer whose enrollment is locked is kept, and settled later without another call.
func TestAnAnswerOutlastsALock(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	registry := prometheus.NewRegistry()
	b.metrics = NewMetrics(registry)
	b.written()
	release := b.lockedBy(b.Workspace)
	b.run(b.Webhooks, 1)
	if state, _, status, attempts, wait := b.row(); state != "pending" || status != 200 || attempts != 1 || wait > lockedAgain {
		t.Errorf("%s, %d, %d attempts, again in %s", state, status, attempts, wait)
	}
	if n := counted(t, registry, "lemma_webhook_answers_kept_total"); n != 1 {
		t.Errorf("%v answers are kept", n)
	}
	release()
	b.due()
	b.run(b.Webhooks, 1)
	if n := len(b.receiver.all()); n != 1 || len(b.settled.list()) != 1 {
		t.Errorf("%d calls, %d settled", n, len(b.settled.list()))
	}
}

// An answer that asks for another call later is heeded although its settlement finds a lock.
func TestALockDoesNotShortenABackOff(t *testing.T) {
	t.Parallel()
	b := setup(t, func(o *Options) { o.BackOff = []time.Duration{time.Hour} })
	b.written()
	b.receiver.status(http.StatusServiceUnavailable)
	holder, err := b.Pool.Begin(context.Background())
	b.Must(err)
	b.hook = func(stage string) {
		switch stage {
		case "called":
			_, err := holder.Exec(context.Background(), `select from outbox for update`)
			b.Must(err)
		case "waits for settlement":
			go func() {
				b.WaitForLocks(1)
				b.Eventually("it is put back", func() bool {
					return b.Count(`select count(*) from pg_stat_activity
					where wait_event_type = 'Lock' and query like '%answered = $4%'`) == 1
				})
				b.Must(holder.Rollback(context.Background()))
			}()
		}
	}
	b.run(b.Webhooks, 1)
	if state, _, status, attempts, wait := b.row(); state != "pending" || status != 503 || attempts != 1 || wait < 45*time.Minute {
		t.Errorf("%s, %d, %d attempts, again in %s", state, status, attempts, wait)
	}
}

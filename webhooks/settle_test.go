package webhooks

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/pgtest"
	"lemma/slots"
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
	b.settleTogether(chunk)
	b.settler.ended(chunk)
	for _, one := range chunk {
		if isOther := one.WorkspaceID == other.Workspace; isOther != (one.err == nil) || isLocked(one.err) == isOther {
			t.Errorf("of the other workspace: %v, %v", isOther, one.err)
		}
	}
	if _, apart := b.settler.apart[b.Workspace]; !apart || len(b.settler.apart) != 1 || len(b.settled.list()) != 1 {
		t.Errorf("apart: %v, settled: %v", b.settler.apart, b.settled.list())
	}
	release()
	b.settleTogether(chunk)
	for _, one := range chunk {
		if one.err != nil {
			t.Error(one.err)
		}
	}
}

// A chunk of a workspace apart keeps its place among the transactions that wait for a lock for longer.
func TestAChunkApartWaitsForItsTurn(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.written()
	taken, err := b.claim(t.Context())
	b.Must(err)
	one := &settlement{claimed: taken[0], result: result{status: 200, final: true}, apart: 1}
	release := b.lockedBy(b.Workspace)
	time.AfterFunc(lockWait+200*time.Millisecond, release)
	if b.settleTogether([]*settlement{one}); one.err != nil {
		t.Error(one.err)
	}
}

// Many workspaces apart share the time for which one waits, so that none waits for its turn until the leases end.
func TestWorkspacesApartShareTheWait(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	var waits string
	b.OnSettled(func(ctx context.Context, tx pgx.Tx, _ []Outcome) error {
		return tx.QueryRow(ctx, `show lock_timeout`).Scan(&waits)
	})
	for apart, want := range map[int]string{1: "3s", 100: "30ms", 100_000: "20ms"} {
		b.written()
		taken, err := b.claim(t.Context())
		b.Must(err)
		one := &settlement{claimed: taken[0], result: result{status: 200, final: true}, apart: apart}
		if b.settleTogether([]*settlement{one}); one.err != nil || waits != want {
			t.Errorf("of %d: %q, %v", apart, waits, one.err)
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
	b.written()
	release := b.lockedBy(b.Workspace)
	b.run(b.Webhooks, 1)
	if state, _, status, attempts, wait := b.row(); state != "pending" || status != 200 || attempts != 1 || wait > lockedAgain {
		t.Errorf("%s, %d, %d attempts, again in %s", state, status, attempts, wait)
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

// Another writer settles the rest while one settles a workspace apart.
func TestAWriterBesideAWorkspaceApart(t *testing.T) {
	t.Parallel()
	locked, free := lemma.NewID(), lemma.NewID()
	s := &settler{writers: 1, apart: map[uuid.UUID]time.Time{locked: time.Now().Add(time.Minute)}}
	for _, ws := range []uuid.UUID{locked, free} {
		s.waiting = append(s.waiting, &settlement{claimed: claimed{WorkspaceID: ws}})
	}
	if chunk, another := s.next(); len(chunk) != 1 || chunk[0].apart != 1 || !another || s.writers != 2 {
		t.Errorf("%d, another: %v, %d writers", len(chunk), another, s.writers)
	}
	if chunk, another := s.next(); len(chunk) != 1 || chunk[0].apart != 0 || another || s.writers != 2 {
		t.Errorf("then %d, another: %v, %d writers", len(chunk), another, s.writers)
	}
	if chunk, another := s.next(); len(chunk) != 0 || another || s.writers != 1 {
		t.Errorf("then %d, another: %v, %d writers", len(chunk), another, s.writers)
	}
}

// A workspace whose answers cannot be settled leaves calls to others.
func TestUnsettledCallsOfOneWorkspace(t *testing.T) {
	t.Parallel()
	s := &settler{slots: newSettlerSlots()}
	busy := lemma.NewID()
	var ended []func()
	for range maxOfOne {
		ended = append(ended, s.begin(busy))
	}
	none, cancel := context.WithCancel(t.Context())
	cancel() // nothing waits
	if _, err := s.slots.Await(none, slots.Resource{Workspace: busy}); err == nil {
		t.Error("a further call of the workspace begins")
	}
	if _, err := s.slots.Await(none, slots.Resource{Workspace: lemma.NewID()}); err != nil {
		t.Error("no call of another workspace begins")
	}
	ended[0]()
	s.begin(busy)()
	if n := s.open.Load(); n != maxOfOne-1 {
		t.Errorf("%d are open", n)
	}
}

// Messages of workspaces whose rows were locked are settled by one writer, in chunks of their own.
func TestChunksOfLockedWorkspaces(t *testing.T) {
	t.Parallel()
	locked, another, free := lemma.NewID(), lemma.NewID(), lemma.NewID()
	now := time.Now()
	s := &settler{apart: map[uuid.UUID]time.Time{locked: now.Add(time.Second), another: now.Add(time.Second)}}
	names := map[uuid.UUID]byte{locked: 'l', another: 'a', free: 'f'}
	add := func(all ...uuid.UUID) {
		for _, ws := range all {
			s.waiting = append(s.waiting, &settlement{claimed: claimed{WorkspaceID: ws}})
		}
	}
	take := func(at time.Time) string {
		var text []byte
		for _, one := range s.take(at) {
			text = append(text, names[one.WorkspaceID])
		}
		return string(text)
	}
	add(locked, free, another, locked, free)
	for i, want := range []string{"ll", "ff", ""} { // the writer of the first chunk has not ended
		if got := take(now); got != want {
			t.Errorf("chunk %d is %q, want %q", i, got, want)
		}
	}
	s.isApart = false
	add(free)
	for i, want := range []string{"a", "f"} {
		if got := take(now); got != want {
			t.Errorf("later chunk %d is %q, want %q", i, got, want)
		}
	}
	add(locked, free)
	if got := take(now.Add(2 * time.Second)); got != "lf" {
		t.Errorf("when none is apart any more: %q", got)
	}
}

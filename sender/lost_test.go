package sender

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/events"
	"lemma/notifications"
)

// Known outcomes are not lost, and unknown ones are not assumed: connections break at
// any moment, and statements wait for each other.

var bg = context.Background()

// breakConnections ends the pool's idle connections at the server and waits
// until their processes are gone.
func (b *bundle) breakConnections(own *pgxpool.Pool) {
	b.T.Helper()
	var pids []int32
	for _, c := range own.AcquireAllIdle(bg) {
		pids = append(pids, int32(c.Conn().PgConn().PID()))
		c.Release()
	}
	b.Exec(`select pg_terminate_backend(p) from unnest($1::int[]) p`, pids)
	b.Eventually("the connections are gone", func() bool {
		return b.Count(`select count(*) from pg_stat_activity where pid = any($1)`, pids) == 0
	})
}

// at runs a step when a worker reaches a point for the nth time.
func at(s *Sender, point string, nth int, step func()) {
	n := 0
	s.Hook = func(_ context.Context, at string, _ notifications.Ref) {
		if at != point {
			return
		}
		if n++; n == nth {
			step()
		}
	}
}

// The answer of a commit is lost although it was applied: the worker finds that out
// and continues, and no row is called twice.
func TestACommitWhoseAnswerIsLost(t *testing.T) {
	b := setup(t)
	refs := b.insert(40, 40, 2)
	s := b.sender()
	s.pool = b.Connect()
	at(s, "committing", 3, func() { b.breakConnections(s.pool) })
	if _, err := s.Work(bg, refs[0]); err != nil {
		t.Fatal(err)
	}
	b.wantCounts(notifications.Counts{Sent: 40})
	b.wantCalledOnce(40)
}

// The reaper has decided before the worker checks: the outcomes are the reaper's, and
// the worker may not continue.
func TestTheReapersDecisionIsNotOurCommit(t *testing.T) {
	b := setup(t)
	refs := b.insert(30, 30, 2)
	s, other := b.sender(), b.sender()
	c, w := b.claimed(s, refs[0])
	e := opening(c, w)
	b.commits(s, c, nil, e, open)
	done := s.call(bg, c, b.carrier, w, s.paceOf(b.provider), nil)
	b.reap(other)
	d, err := s.content(bg, b.Workspace, c.contentID)
	b.Must(err)
	if g, err := s.applied(bg, c, done, opening(c, d.render(c, 10, time.Second))); g != lost || err != nil {
		t.Errorf("the check returned %q, %v", g, err)
	}
}

// A commit of a second attempt that was not applied is not taken for applied because the first
// attempt has an outcome.
func TestAnOutcomeOfTheFirstAttemptIsNotOurCommit(t *testing.T) {
	b := setup(t)
	b.insert(1, 1, 2)
	b.carrier.then[addressOf(0)] = []Outcome{Unknown}
	s := b.sender()
	b.work(s)
	b.reap(s)
	b.makeDue()
	c, w := b.claimed(s, b.batches("status = 'ready'")[0])
	b.commits(s, c, nil, opening(c, w), open)
	done := s.call(bg, c, b.carrier, w, s.paceOf(b.provider), nil)
	b.Exec(`update attempts set basis = $1`, done[0].basis)
	if g, err := s.applied(bg, c, done, ending{state: stateDone}); g != "" || err != nil {
		t.Errorf("the check returned %q, %v", g, err)
	}
}

// The commit was applied behind a closed gate, its answer was lost, and the gate is
// open again: no window is open.
func TestNoWindowIsOpenBehindAClosedGate(t *testing.T) {
	b := setup(t)
	refs := b.insert(30, 30, 2)
	s := b.sender()
	c, w := b.claimed(s, refs[0])
	b.commits(s, c, nil, opening(c, w), open)
	done := s.call(bg, c, b.carrier, w, s.paceOf(b.provider), nil)
	d, err := s.content(bg, b.Workspace, c.contentID)
	b.Must(err)
	e := opening(c, d.render(c, 10, time.Second))
	b.inTx(func(tx pgx.Tx) error { return b.ledger.Hold(bg, tx, b.Workspace, b.origin) })
	b.commits(s, c, done, e, held)
	b.inTx(func(tx pgx.Tx) error { return b.ledger.Unhold(bg, tx, b.Workspace, b.origin) })
	if g, err := s.applied(bg, c, done, e); g != held || err != nil {
		t.Errorf("the check returned %q, %v", g, err)
	}
}

// claimed takes a batch and renders its first window.
func (b *bundle) claimed(s *Sender, ref notifications.Ref) (*claim, *window) {
	b.T.Helper()
	c, err := s.Claim(bg, ref)
	if err != nil || c == nil {
		b.T.Fatal(c, err)
	}
	d, err := s.content(bg, b.Workspace, c.contentID)
	b.Must(err)
	return c, d.render(c, 10, time.Second)
}

func (b *bundle) commits(s *Sender, c *claim, done []outcome, e ending, want gate) {
	b.T.Helper()
	if g, err := s.commitOnce(bg, c, done, e); g != want || err != nil {
		b.T.Fatal(g, err)
	}
	if want == open && e.state == stateGo {
		c.through = e.through
	}
}

func (b *bundle) inTx(do func(pgx.Tx) error) {
	b.T.Helper()
	b.Must(pgx.BeginFunc(bg, b.Pool, do))
}

// A commit that was applied long before its worker checked it counts the lease from
// then: calls must end with it.
func TestALateCheckLengthensNoLease(t *testing.T) {
	b := setup(t)
	refs := b.insert(30, 30, 2)
	s := b.sender()
	c, w := b.claimed(s, refs[0])
	e := opening(c, w)
	b.commits(s, c, nil, e, open)
	var reads []time.Time // when the commit got a connection: first for the attempt whose answer is lost
	s.pool = b.Connect(func(c *pgxpool.Config) {
		c.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
		c.PrepareConn = func(context.Context, *pgx.Conn) (bool, error) {
			reads = append(reads, time.Now())
			return true, nil
		}
	})
	b.Must(s.pool.Ping(bg))
	at(s, "committing", 1, func() {
		b.breakConnections(s.pool)
		reads = nil
	})
	if g, err := s.commit(bg, c, nil, e); g != open || err != nil {
		t.Fatal(g, err)
	}
	if len(reads) < 2 {
		t.Fatal("the first attempt was answered")
	}
	if last := reads[0].Add(s.cfg.Lease - s.cfg.margin()); c.until.After(last) {
		t.Errorf("calls may go on for %v after they should have ended", c.until.Sub(last))
	}
}

// The meter cannot be read, and the window before it is known.
func TestAFailingMeterLosesNothing(t *testing.T) {
	b := setup(t)
	b.Exec(`update providers set rate_per_second = 1000 where workspace_id = $1`, b.Workspace)
	refs := b.insert(20, 20, 2)
	s := b.sender()
	at(s, "called", 1, func() { b.Exec(`alter table provider_meters rename to gone`) })
	if _, err := s.Work(bg, refs[0]); err == nil {
		t.Fatal("the meter could be read")
	}
	b.Exec(`alter table gone rename to provider_meters`)
	s.Hook = nil
	b.reap(s)
	b.makeDue()
	b.work(s)
	b.wantCounts(notifications.Counts{Sent: 20})
	b.wantCalledOnce(20)
}

// A commit that runs into the statement timeout is tried again.
func TestACommitThatTimesOutIsTriedAgain(t *testing.T) {
	b := setup(t)
	refs := b.insert(10, 10, 2)
	s := b.sender()
	s.pool = b.Connect(func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["statement_timeout"] = "100ms" })
	blocker, err := b.Pool.Begin(bg)
	b.Must(err)
	at(s, "called", 1, func() {
		if _, err := blocker.Exec(bg, `select from batches for update`); err != nil {
			t.Error(err)
		}
		time.AfterFunc(300*time.Millisecond, func() { _ = blocker.Rollback(bg) })
	})
	if _, err := s.Work(bg, refs[0]); err != nil {
		t.Fatal(err)
	}
	b.wantCounts(notifications.Counts{Sent: 10})
}

// The reaper holds a stale batch when a verb begins, and commits a retry batch that
// the first statement of the verb cannot see.
func (b *bundle) whileReaping(before, verb func(pgx.Tx) error) {
	b.T.Helper()
	b.insert(10, 10, 2)
	for i := range 10 {
		b.carrier.then[addressOf(i)] = []Outcome{Unknown}
	}
	s := b.sender()
	b.work(s)
	b.expireLeases()
	if before != nil {
		b.inTx(before)
	}
	reached, release := pauseAt(s, "reaping", 1)
	done := make(chan error, 2)
	go func() { _, err := s.Reap(bg); done <- err }()
	<-reached
	go func() { done <- pgx.BeginFunc(bg, b.Pool, verb) }()
	b.WaitForLocks(1)
	close(release)
	b.Must(errors.Join(<-done, <-done))
}

func TestCancelSeesTheRetryBatch(t *testing.T) {
	b := setup(t)
	b.whileReaping(nil, func(tx pgx.Tx) error { _, err := b.ledger.Cancel(bg, tx, b.Workspace, b.origin); return err })
	b.work(b.sender())
	b.wantCalledOnce(1)
	b.wantCounts(notifications.Counts{Orphaned: 10})
}

func TestPauseSeesTheRetryBatch(t *testing.T) {
	b := setup(t)
	b.whileReaping(nil, func(tx pgx.Tx) error { return b.ledger.Hold(bg, tx, b.Workspace, b.origin) })
	b.work(b.sender())
	b.wantCalledOnce(1)
}

func TestResumeSeesTheRetryBatch(t *testing.T) {
	b := setup(t)
	b.whileReaping(func(tx pgx.Tx) error { return b.ledger.Hold(bg, tx, b.Workspace, b.origin) },
		func(tx pgx.Tx) error { return b.ledger.Unhold(bg, tx, b.Workspace, b.origin) })
	b.Must(b.sender().Release(bg))
	if stuck := b.batches("gate = 'held' and status in ('ready', 'leased')"); len(stuck) > 0 {
		t.Errorf("%d batches are held for ever", len(stuck))
	}
}

// A page that waits for the reaper, which commits a retry batch, leaves nothing held.
func TestAReleaseSeesTheRetryBatch(t *testing.T) {
	b := setup(t)
	release := notifications.Release{WorkspaceID: b.Workspace, OriginID: b.origin}
	b.whileReaping(func(tx pgx.Tx) error {
		if err := b.ledger.Hold(bg, tx, b.Workspace, b.origin); err != nil {
			return err
		}
		_, err := tx.Exec(bg, `insert into releases (workspace_id, origin_id) values ($1, $2)`, b.Workspace, b.origin)
		return err
	}, func(pgx.Tx) error { return b.ledger.Release(bg, release) })
	b.Must(b.sender().Release(bg))
	if stuck := b.batches("gate = 'held' and status in ('ready', 'leased')"); len(stuck) > 0 {
		t.Errorf("%d batches are held for ever", len(stuck))
	}
	b.WantCount(0, `select count(*) from releases`)
}

// An origin that cannot be released does not stop the others.
func TestAReleaseThatFailsStopsNoOther(t *testing.T) {
	b := setup(t)
	b.insert(10, 10, 2)
	broken := uuid.New()
	b.Exec(`insert into batches select (jsonb_populate_record(b, jsonb_build_object('origin_id', $1::text))).* from batches b`, broken)
	b.Exec(`update batches set gate = 'held'`)
	b.Exec(`create function fail() returns trigger language plpgsql as $$ begin raise 'it fails'; end $$`)
	b.Exec(`create trigger fail before update on batches_default for each row when (new.origin_id = '` + broken.String() + `')
		execute function fail()`)
	b.Exec(`insert into releases (workspace_id, origin_id) select workspace_id, origin_id from batches`)
	b.Exec(`insert into releases (workspace_id, origin_id) select $1, gen_random_uuid() from generate_series(1, 30)`, b.Workspace)
	if err := b.sender().Release(bg); err == nil {
		t.Error("no error")
	}
	b.WantCount(1, `select count(*) from batches where gate = 'held' and origin_id = $1`, broken)
	b.WantCount(0, `select count(*) from batches where gate = 'held' and origin_id = $1`, b.origin)
	b.WantCount(1, `select count(*) from releases where origin_id = $1`, broken)
	b.WantCount(1, `select count(*) from releases`)
}

// oddCarrier returns ids that no text column accepts, or one receipt too few.
type oddCarrier struct {
	*scripted
	id    string
	short int
}

func (o oddCarrier) Send(ctx context.Context, messages []Message) []Receipt {
	r := o.scripted.Send(ctx, messages)
	for i := range r {
		r[i].CarrierID = o.id
	}
	return r[:len(r)-o.short]
}

func TestACarriersTextBreaksNoCommit(t *testing.T) {
	for name, odd := range map[string]oddCarrier{"bytes that are no text": {id: "q\xff\x00"}, "one receipt too few": {id: "q", short: 1}} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			refs := b.insert(5, 5, 2)
			odd.scripted = b.carrier
			s := b.sender()
			s.kinds["scripted"] = Kind{Name: "scripted", Open: func(Account) (Carrier, error) { return odd, nil }}
			if _, err := s.Work(bg, refs[0]); err != nil {
				t.Fatal(err)
			}
			if n := b.counts().Sent; n != int64(5-odd.short) {
				t.Errorf("%d sent", n)
			}
			b.reap(s)
			b.work(s)
			b.wantCalledOnce(1)
		})
	}
}

// Evidence is about one attempt: a rejected first attempt proves nothing of a second
// without an answer.
func TestARejectedFirstProvesNothingOfTheSecond(t *testing.T) {
	b := setup(t)
	refs := b.insert(1, 1, 2)
	b.carrier.then[addressOf(0)] = []Outcome{Unknown, Unknown}
	s := b.sender()
	b.work(s)
	b.reap(s)
	b.work(s)
	b.record(refs[0], 0, events.Rejected)
	b.reap(s)
	var outcome, basis string
	err := b.Pool.QueryRow(bg, `select outcome, basis from attempts where workspace_id = $1 and attempt = 2`, b.Workspace).Scan(&outcome,
		&basis)
	if err != nil || outcome != "unknown" || basis != "reaper" {
		t.Errorf("the second attempt is %s by %s, %v", outcome, basis, err)
	}
	b.wantCounts(notifications.Counts{Orphaned: 1})
}

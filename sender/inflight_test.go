package sender

import (
	"context"
	"encoding/binary"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/notifications"
	"lemma/pgerr"
)

// wire dials, and closes the client's ends of its connections when a test calls cut.
// The server does not notice while a statement waits for a lock, and the client's
// request to cancel it does not arrive, as when the network fails.
type wire struct {
	mu    sync.Mutex
	conns []net.Conn
}

func (w *wire) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err == nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.conns = append(w.conns, conn)
		conn = noCancel{conn}
	}
	return conn, err
}

type noCancel struct{ net.Conn }

func (c noCancel) Write(b []byte) (int, error) {
	const cancelRequest = 80877102 // protocol 3.0, "CancelRequest"
	if len(b) == 16 && binary.BigEndian.Uint32(b[4:]) == cancelRequest {
		return 0, net.ErrClosed
	}
	return c.Conn.Write(b)
}

func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.conns = nil
}

// The connection breaks while the commit's statement still runs at the server:
// the second attempt queues behind the first, which then opens the next window. No
// row may be orphaned that was never called, whichever commit it is.
func TestAStatementStillRunsWhenItsConnectionBreaks(t *testing.T) {
	for name, nth := range map[string]int{ // which commit of four windows of ten
		"opening the first window": 1, "opening the second": 2, "the end": 5,
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			refs := b.insert(40, 40, 1)
			b.loseAnswer(refs[0], nth)
			b.reap(b.sender())
			b.work(b.sender())
			b.wantCounts(notifications.Counts{Sent: 40})
			b.wantCalledOnce(40)
			b.WantCount(0, `select count(*) from batch_log where workspace_id = $1 and event = 'lost'`, b.Workspace)
		})
	}
}

// The first attempt reaches the server after the second has opened the window and the
// worker has continued: it changes nothing.
func TestAStatementThatArrivesLateMovesNothing(t *testing.T) {
	b := setup(t)
	refs := b.insert(30, 30, 1)
	s := b.sender()
	c, w := b.claimed(s, refs[0])
	first, late := opening(c, w), *c
	b.commits(s, c, nil, first, open)
	done := s.call(bg, c, b.carrier, w, s.paceOf(b.provider), nil)
	d, err := s.content(bg, b.Workspace, c.contentID)
	b.Must(err)
	second := d.render(c, 10, time.Second)
	b.commits(s, c, done, opening(c, second), open)
	s.call(bg, c, b.carrier, second, s.paceOf(b.provider), nil)
	if _, err := s.commitOnce(bg, &late, nil, first); err != nil {
		t.Fatal(err)
	}
	b.reap(s) // the worker has crashed
	b.work(s)
	b.wantCalledOnce(30)
	b.wantCounts(notifications.Counts{Sent: 20, Orphaned: 10})
}

// The primary key of attempts keeps an outcome from being inserted and counted twice,
// also where the token and the window before are right.
func TestAnOutcomeIsWrittenOnce(t *testing.T) {
	b := setup(t)
	refs := b.insert(20, 20, 2)
	s := b.sender()
	c, w := b.claimed(s, refs[0])
	b.commits(s, c, nil, opening(c, w), open)
	done := s.call(bg, c, b.carrier, w, s.paceOf(b.provider), nil)
	b.commits(s, c, done, ending{state: stateKeep}, open)
	if _, err := s.commitOnce(bg, c, done, ending{state: stateKeep}); err == nil || !pgerr.Is(err, "23") {
		t.Errorf("written again: %v", err)
	}
	if g, err := s.commitAgain(bg, c, done, ending{state: stateKeep}); g != open || err != nil {
		t.Errorf("a further attempt returned %q, %v", g, err)
	}
	if n := b.counts().Sent; n != 10 {
		t.Errorf("%d sent", n)
	}
}

// A window was opened and not called, because the worker had to stop, and a row of an
// earlier window is unknown: no other row is.
func TestAnUncalledWindowIsNotUnknown(t *testing.T) {
	b := setup(t)
	refs := b.insert(40, 40, 1)
	for i := range 40 {
		b.carrier.then[addressOf(i)] = []Outcome{Unknown}
	}
	s := b.sender()
	at(s, "committing", 2, s.Drain)
	if _, err := s.Work(bg, refs[0]); err != nil {
		t.Fatal(err)
	}
	b.reap(b.sender())
	b.wantCounts(notifications.Counts{Orphaned: 10, Pending: 30})
}

// loseAnswer works on a batch and cuts the connection of its nth commit while the
// statement waits for a lock. The statement then goes on, beside its second try.
func (b *bundle) loseAnswer(ref notifications.Ref, nth int) {
	b.T.Helper()
	s, w := b.sender(), &wire{}
	s.pool = b.Connect(func(c *pgxpool.Config) { c.ConnConfig.DialFunc = w.dial })
	reached, release := pauseAt(s, "committing", nth)
	done := make(chan error, 1)
	go func() { _, err := s.Work(bg, ref); done <- err }()
	<-reached
	blocker, err := b.Pool.Begin(bg)
	b.Must(err)
	b.T.Cleanup(func() { _ = blocker.Rollback(bg) })
	if _, err := blocker.Exec(bg, `select from batches where workspace_id = $1 for update`, b.Workspace); err != nil {
		b.T.Fatal(err)
	}
	close(release)
	b.WaitForLocks(1)
	w.cut()
	b.WaitForLocks(2)
	b.Must(blocker.Rollback(bg))
	if err := <-done; err != nil {
		b.T.Error(err)
	}
}

package webhooks

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
)

// apartNow is a settler of workspaces that are settled apart.
func apartNow(all ...uuid.UUID) *settler {
	s := newSettler(time.Minute)
	for _, ws := range all {
		s.apart[ws] = &apart{until: time.Now().Add(apartTime)}
	}
	return s
}

// wait adds an answer of each workspace to those that wait.
func (s *settler) wait(all ...uuid.UUID) {
	for _, ws := range all {
		s.waiting = append(s.waiting, &settlement{claimed: claimed{WorkspaceID: ws, since: time.Now()}})
	}
}

// When a workspace becomes apart, those of its answers are put off for which there is no place among workspaces apart.
func TestAnswersBeyondThoseOfWorkspacesApartArePutOff(t *testing.T) {
	t.Parallel()
	one, another, third, free := lemma.NewID(), lemma.NewID(), lemma.NewID(), lemma.NewID()
	s := apartNow(another, third)
	off := map[uuid.UUID]int{}
	add := func(ws uuid.UUID, n int) {
		for range n {
			s.waiting = append(s.waiting, &settlement{claimed: claimed{WorkspaceID: ws, since: time.Now()}, done: func(o *settlement) {
				if off[ws]++; !isLocked(o.err) || afterLock(o.err) > apartTime {
					t.Errorf("%v, again in %s", o.err, afterLock(o.err))
				}
			}})
		}
	}
	add(another, maxApart/2-5)
	add(one, maxApart/2+10) // of one alone
	add(free, settleChunk)
	add(third, 7) // of all
	putOff(s.ended([]*settlement{{claimed: claimed{WorkspaceID: one}, err: errPutOff}}, nil))
	if off[one] != 10 || off[third] != 2 || len(off) != 2 || len(s.waiting) != maxApart+settleChunk {
		t.Errorf("put off %v, %d wait", off, len(s.waiting))
	}
}

// What waits for long is put off, before its lease ends.
func TestAnswersThatWaitForLongArePutOff(t *testing.T) {
	t.Parallel()
	locked, free := lemma.NewID(), lemma.NewID()
	s := apartNow(locked)
	s.wait(locked, locked, free)
	for _, one := range []*settlement{s.waiting[1], s.waiting[2]} {
		one.since = time.Now().Add(-31 * time.Second)
	}
	over := s.ended([]*settlement{{claimed: claimed{WorkspaceID: lemma.NewID()}}}, nil)
	if len(over) != 1 || over[0].WorkspaceID != locked || len(s.waiting) != 2 {
		t.Errorf("%d are put off, %d wait", len(over), len(s.waiting))
	}
}

// While the process shuts down, no answer waits for the turn of its workspace.
func TestAShutdownPutsOffAnswers(t *testing.T) {
	t.Parallel()
	locked, free := lemma.NewID(), lemma.NewID()
	s := apartNow(locked)
	off := 0
	add := func(ws uuid.UUID) {
		s.waiting = append(s.waiting, &settlement{claimed: claimed{WorkspaceID: ws, since: time.Now()}, done: func(*settlement) { off++ }})
	}
	add(locked)
	add(free)
	if s.drain(); off != 1 || len(s.waiting) != 1 {
		t.Errorf("%d are put off, %d wait", off, len(s.waiting))
	}
	add(locked)
	if over := s.excess(); len(over) != 1 {
		t.Errorf("then %d are put off", len(over))
	}
}

// An answer of a workspace apart is put off when enough others wait, and settled later without another call.
func TestAnAnswerIsPutOff(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.written()
	s := b.settler
	s.mu.Lock()
	s.apart[b.Workspace] = &apart{until: time.Now().Add(time.Minute)}
	s.writers = settlers // they are busy
	for range maxApart / 2 {
		s.wait(b.Workspace)
	}
	s.mu.Unlock()
	b.run(b.Webhooks, 1)
	if state, _, status, attempts, wait := b.row(); state != "pending" || status != 200 || attempts != 1 || wait > apartTime {
		t.Errorf("%s, %d, %d attempts, again in %s", state, status, attempts, wait)
	}
	s.mu.Lock()
	s.waiting, s.writers = nil, 0
	s.mu.Unlock()
	b.due()
	b.run(b.Webhooks, 1)
	if n := len(b.receiver.all()); n != 1 || len(b.settled.list()) != 1 {
		t.Errorf("%d calls, %d settled", n, len(b.settled.list()))
	}
}

// Enrollments that are locked for long do not keep other answers of their workspace from being settled, however many
// workspaces are apart.
func TestLockedEnrollmentsOfAWorkspaceApart(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	e, _ := b.endpoint("/hook")
	locked := map[uuid.UUID]bool{}
	for i := range 16 {
		m := b.message(e)
		m.ID[0] = byte(i) // the locked ones come first in the order of ids
		locked[m.EnrollmentID] = i < 8
		b.write(m)
	}
	b.OnSettled(func(ctx context.Context, tx pgx.Tx, all []Outcome) error {
		for _, o := range all {
			if locked[o.EnrollmentID] {
				_, err := tx.Exec(ctx, `select pg_sleep(0.02), set_config('lock_timeout', '1', true)`)
				if err == nil {
					_, err = tx.Exec(ctx, `do $$ begin raise exception using errcode = '55P03'; end $$`)
				}
				return err
			}
		}
		return nil
	})
	for range 30 {
		b.Exec(`update outbox set due_at = now(), waits = false where finished_at is null`)
		taken, err := b.claimMore(context.Background(), b.Workspace, e.ID, 16, 1<<20)
		b.Must(err)
		var chunk []*settlement
		for _, m := range taken {
			chunk = append(chunk, &settlement{claimed: m, result: result{status: 200, final: true}, apart: rowWait})
		}
		if len(chunk) == 0 {
			break
		}
		b.settleTogether(chunk)
		for _, one := range chunk {
			if one.err != nil {
				b.Must(b.putBack(one.claimed, one.result, 0))
			}
		}
	}
	if n := b.Count(`select count(*) from outbox where status = 'delivered'`); n != 8 {
		t.Errorf("%d of 8 are settled", n)
	}
}

// A chunk of a workspace apart keeps its place among the transactions that wait for a lock for longer.
func TestAChunkApartWaitsForItsTurn(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.written()
	taken, err := b.claim(t.Context())
	b.Must(err)
	one := &settlement{claimed: taken[0], result: result{status: 200, final: true}, apart: apartWait}
	release := b.lockedBy(b.Workspace)
	time.AfterFunc(lockWait+200*time.Millisecond, release)
	if b.settleTogether([]*settlement{one}); one.err != nil {
		t.Error(one.err)
	}
}

// Workspaces apart share a long wait for a lock, and each has it in its turn.
func TestWorkspacesApartShareALongWait(t *testing.T) {
	t.Parallel()
	all := []uuid.UUID{lemma.NewID(), lemma.NewID(), lemma.NewID(), lemma.NewID()}
	s := apartNow(all...)
	waits := map[uuid.UUID][]time.Duration{}
	var round time.Duration
	for range 20 {
		s.waiting = nil
		s.wait(all...)
		chunk := s.take(time.Now())
		if len(chunk) != 1 {
			t.Fatalf("%d of a chunk", len(chunk))
		}
		ws := chunk[0].WorkspaceID
		waits[ws] = append(waits[ws], chunk[0].apart)
		round += chunk[0].apart
		s.ended(chunk, nil)
	}
	for _, ws := range all {
		if got := waits[ws]; len(got) != 5 || slices.Max(got) != apartWait || slices.Min(got) != apartWait/4 {
			t.Errorf("one waits %v", got)
		}
	}
	if round > 5*2*apartWait {
		t.Errorf("five rounds last %s", round)
	}
	for range 2 {
		s.waiting = nil
		s.wait(all[0])
		chunk := s.take(time.Now())
		if len(chunk) != 1 || chunk[0].apart != apartWait {
			t.Errorf("alone: %v", chunk)
		}
		s.ended(chunk, nil)
	}
}

// A workspace that becomes apart has its turn after those that wait for theirs.
func TestAWorkspaceThatBecomesApartIsLast(t *testing.T) {
	t.Parallel()
	first, second, last := lemma.NewID(), lemma.NewID(), lemma.NewID()
	s := apartNow(first, second)
	s.wait(first, second)
	s.ended(s.take(time.Now()), nil)
	s.ended([]*settlement{{claimed: claimed{WorkspaceID: last}, err: errPutOff}}, nil)
	s.waiting = nil
	s.wait(last, second)
	if chunk := s.take(time.Now()); chunk[0].WorkspaceID != second {
		t.Error("it is first")
	}
}

// A workspace whose turn comes late stays apart until then, and one whose rows were not locked at its turn is not
// apart any more when its time is over.
func TestAWorkspaceIsApartUntilItsTurn(t *testing.T) {
	t.Parallel()
	locked, free := lemma.NewID(), lemma.NewID()
	s := apartNow(locked, free)
	s.wait(locked, free)
	s.apart[free].free = true
	late := time.Now().Add(2 * apartTime)
	if chunk := s.take(late); len(chunk) != 1 || chunk[0].WorkspaceID != locked || chunk[0].apart != apartWait {
		t.Errorf("%d in the chunk", len(chunk))
	}
	if s.apart[free] != nil || s.apart[locked] == nil {
		t.Errorf("apart: %v", s.apart)
	}
	s.ended([]*settlement{{claimed: claimed{WorkspaceID: locked}, apart: apartWait}}, nil)
	s.wait(locked)
	if s.take(late); s.apart[locked] != nil {
		t.Error("it is apart without a lock")
	}
}

// A chunk waits for a lock for as long as its turn says.
func TestTheWaitForALock(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	var waits string
	b.OnSettled(func(ctx context.Context, tx pgx.Tx, _ []Outcome) error {
		return tx.QueryRow(ctx, `show lock_timeout`).Scan(&waits)
	})
	for apart, want := range map[time.Duration]string{0: "500ms", apartWait: "3s", rowWait: "20ms"} {
		b.written()
		taken, err := b.claim(t.Context())
		b.Must(err)
		one := &settlement{claimed: taken[0], result: result{status: 200, final: true}, apart: apart}
		if b.settleTogether([]*settlement{one}); one.err != nil || waits != want {
			t.Errorf("of %s: %q, %v", apart, waits, one.err)
		}
	}
}

// Another writer settles the rest while one settles a workspace apart.
func TestAWriterBesideAWorkspaceApart(t *testing.T) {
	t.Parallel()
	locked, free := lemma.NewID(), lemma.NewID()
	s := apartNow(locked)
	s.writers = 1
	s.wait(locked, free)
	if chunk, another := s.next(); len(chunk) != 1 || chunk[0].apart != apartWait || !another || s.writers != 2 {
		t.Errorf("%d, another: %v, %d writers", len(chunk), another, s.writers)
	}
	if chunk, another := s.next(); len(chunk) != 1 || chunk[0].apart != 0 || another || s.writers != 2 {
		t.Errorf("then %d, another: %v, %d writers", len(chunk), another, s.writers)
	}
	if chunk, another := s.next(); len(chunk) != 0 || another || s.writers != 1 {
		t.Errorf("then %d, another: %v, %d writers", len(chunk), another, s.writers)
	}
}

// Messages of workspaces whose rows were locked are settled by one writer, in chunks of their own.
func TestChunksOfLockedWorkspaces(t *testing.T) {
	t.Parallel()
	locked, another, free := lemma.NewID(), lemma.NewID(), lemma.NewID()
	now := time.Now()
	s := apartNow(locked, another)
	names := map[uuid.UUID]byte{locked: 'l', another: 'a', free: 'f'}
	take := func(at time.Time) string {
		var text []byte
		for _, one := range s.take(at) {
			text = append(text, names[one.WorkspaceID])
		}
		return string(text)
	}
	s.wait(locked, free, another, locked, free)
	for i, want := range []string{"ll", "ff", ""} { // the writer of the first chunk has not ended
		if got := take(now); got != want {
			t.Errorf("chunk %d is %q, want %q", i, got, want)
		}
	}
	s.isApart = false
	s.wait(free)
	for i, want := range []string{"a", "f"} {
		if got := take(now); got != want {
			t.Errorf("later chunk %d is %q, want %q", i, got, want)
		}
	}
	s.apart[locked].free = true
	s.wait(locked, free)
	if got := take(now.Add(2 * apartTime)); got != "lf" {
		t.Errorf("when none is apart any more: %q", got)
	}
}

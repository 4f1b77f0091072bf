package webhooks

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"

	"lemma/pgerr"
	"lemma/slots"
)

// A transaction of a workspace may have rows locked for long that its answers change. Then the workspace is
// settled apart, so that others do not wait, and what cannot be settled soon is put off.

const (
	lockWait  = 500 * time.Millisecond // how long a chunk waits for a row that another transaction has locked
	apartWait = 3 * time.Second        // how long one chunk of a workspace apart waits for it, by turns
	rowWait   = 20 * time.Millisecond  // how long each message waits when its chunk did not get the row
	apartTime = 10 * time.Second       // how long a workspace is settled apart
	maxApart  = maxUnsettled / 2       // calls of all workspaces apart that are not settled yet; one has half of them at most
)

// errPutOff is the error of settlements that are not tried, since enough others of workspaces apart wait.
var errPutOff = errors.New("other answers of workspaces whose rows are locked wait to be settled")

// isLocked reports that another transaction had a row locked (lock_not_available), or that the settlement was put off
// since it has those of its workspace locked.
func isLocked(err error) bool { return pgerr.Is(err, "55P03") || errors.Is(err, errPutOff) }

// apart is a workspace that is settled apart.
type apart struct {
	until time.Time
	turn  int  // its last one
	free  bool // no row was locked then
}

func newSettler(lease time.Duration) *settler {
	return &settler{slots: slots.New(slots.Limits{Process: maxUnsettled, Workspace: maxOfOne}, nil),
		apart: map[uuid.UUID]*apart{}, apartSlots: slots.New(slots.Limits{Process: maxApart, Workspace: maxApart / 2},
			func(string) error { return errPutOff }), tooOld: lease / 2}
}

// begin waits until a call may begin. ended follows its settlement. A call of a workspace apart that would have to
// wait does not begin: it would hold a call that others could have.
func (s *settler) begin(ws uuid.UUID) (ended func(), may bool) {
	leaveApart := func() {}
	if s.isApartNow(ws) {
		leave, err := s.apartSlots.Try(slots.Resource{Workspace: ws})
		if err != nil {
			return nil, false
		}
		leaveApart = leave
	}
	leave, _ := s.slots.Await(context.Background(), slots.Resource{Workspace: ws}) // it waits for ever
	s.open.Add(1)
	return func() {
		s.open.Add(-1)
		leave()
		leaveApart()
	}, true
}

// isFull reports that no call of a workspace may begin, since it is apart and too many answers of such ones wait.
func (s *settler) isFull(ws uuid.UUID) bool {
	if !s.isApartNow(ws) {
		return false
	}
	leave, err := s.apartSlots.Try(slots.Resource{Workspace: ws})
	if err != nil {
		return true
	}
	leave()
	return false
}

func (s *settler) isApartNow(ws uuid.UUID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.apart[ws] != nil
}

// take removes the next chunk: of workspaces whose rows are not locked, or of one whose rows were, by turns.
// One writer at most settles the latter, so that the other one waits for no lock of theirs.
func (s *settler) take(now time.Time) []*settlement {
	next, n, others := s.nextApart(now)
	ofApart := next != uuid.Nil && !s.isApart && (!others || !s.wasApart)
	var wait time.Duration
	if ofApart {
		wait = s.turnOf(next, n)
	}
	var chunk []*settlement
	s.waiting = slices.DeleteFunc(s.waiting, func(one *settlement) bool {
		isApart := s.apart[one.WorkspaceID] != nil
		if len(chunk) == settleChunk || isApart != ofApart || isApart && one.WorkspaceID != next {
			return false
		}
		one.apart = wait
		chunk = append(chunk, one)
		return true
	})
	s.wasApart = ofApart
	s.isApart = s.isApart || ofApart
	return chunk
}

// nextApart is the workspace apart whose turn is next, and how many of them have answers that wait. others reports
// whether answers of others wait. When its time is over, a workspace is not apart any more, unless answers of it
// wait and its rows were locked at its last turn.
func (s *settler) nextApart(now time.Time) (next uuid.UUID, n int, others bool) {
	waiting := map[uuid.UUID]bool{}
	for _, one := range s.waiting {
		waiting[one.WorkspaceID] = true
	}
	maps.DeleteFunc(s.apart, func(ws uuid.UUID, of *apart) bool { return now.After(of.until) && (of.free || !waiting[ws]) })
	for _, one := range s.waiting { // of those with one turn, the first that waits
		ws := one.WorkspaceID
		switch of := s.apart[ws]; {
		case of == nil:
			others = true
		case waiting[ws]:
			waiting[ws] = false
			if n++; next == uuid.Nil || of.turn < s.apart[next].turn {
				next = ws
			}
		}
	}
	return next, n, others
}

// turnOf gives a workspace apart its turn, and returns for how long its chunk waits for a lock. While transactions
// lock a row by turns, only a long wait gets it. But leases end, so n workspaces share one long wait, and each has a
// long one after n rounds at most.
func (s *settler) turnOf(ws uuid.UUID, n int) time.Duration {
	s.turns++
	s.apart[ws].turn = s.turns
	if n == 1 || s.short >= n {
		s.short = 0
		return apartWait
	}
	s.short++
	return max(rowWait, apartWait/time.Duration(n)) // 0 would wait for ever
}

// ended follows the settlement of a chunk. Answers of workspaces whose rows are locked wait for their turn. It
// returns those that are put off.
func (s *settler) ended(chunk, locked []*settlement) (over []*settlement) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if chunk[0].apart > 0 {
		s.isApart = false
	}
	if of := s.apart[chunk[0].WorkspaceID]; of != nil && chunk[0].apart > 0 {
		of.free = true
	}
	for _, one := range chunk {
		if isLocked(one.err) {
			s.setApart(one.WorkspaceID)
		}
	}
	for _, one := range locked {
		s.setApart(one.WorkspaceID)
	}
	s.waiting = append(s.waiting, locked...)
	return s.excess()
}

// setApart makes a workspace be settled apart for apartTime, or longer.
func (s *settler) setApart(ws uuid.UUID) {
	if s.apart[ws] == nil {
		s.apart[ws] = &apart{turn: s.turns}
	}
	s.apart[ws].until, s.apart[ws].free = time.Now().Add(apartTime), false
}

// without returns the settlements of a chunk but some.
func without(chunk, some []*settlement) []*settlement {
	left := map[*settlement]bool{}
	for _, one := range some {
		left[one] = true
	}
	return slices.DeleteFunc(slices.Clone(chunk), func(one *settlement) bool { return left[one] })
}

// excess removes those of workspaces apart that wait beyond maxApart, or beyond half of it of one workspace, since
// their calls began before, and those that have waited for long: their leases end. While the process shuts down, it
// removes all.
func (s *settler) excess() (over []*settlement) {
	if len(s.apart) == 0 {
		return nil
	}
	kept, of := 0, map[uuid.UUID]int{}
	s.waiting = slices.DeleteFunc(s.waiting, func(one *settlement) bool {
		if s.apart[one.WorkspaceID] == nil {
			return false
		}
		if kept < maxApart && of[one.WorkspaceID] < maxApart/2 && time.Since(one.since) < s.tooOld && !s.draining {
			kept++
			of[one.WorkspaceID]++
			return false
		}
		s.setApart(one.WorkspaceID) // until it is settled
		over = append(over, one)
		return true
	})
	return over
}

// drain puts off what waits for the turn of its workspace, now and from now on: the process shuts down.
func (s *settler) drain() {
	s.mu.Lock()
	s.draining = true
	over := s.excess()
	s.mu.Unlock()
	putOff(over)
}

// putOff ends settlements that are not tried.
func putOff(over []*settlement) {
	for _, one := range over {
		one.err = errPutOff
		one.done(one)
	}
}

// lockedAgain is when an answer is settled again whose enrollment another transaction had locked.
const lockedAgain = 2 * time.Second

// afterLock is when an answer is settled again that met a lock, or was put off.
func afterLock(err error) time.Duration {
	if errors.Is(err, errPutOff) {
		return lockedAgain + rand.N(apartTime-lockedAgain)
	}
	return lockedAgain
}

// settleTogether settles a chunk. If it fails, each message is settled alone, so that one
// cannot fail the others. They have one time limit together: those behind them wait. If rows are locked,
// which a long transaction of a workspace may do, each workspace is settled by itself. It returns the
// answers of those whose rows are locked: they are settled apart, unless they were already.
func (w *Webhooks) settleTogether(chunk []*settlement) (locked []*settlement) {
	isApart := chunk[0].apart > 0
	err := w.settleAll(context.Background(), chunk, cmp.Or(chunk[0].apart, lockWait))
	if isApart || !isLocked(err) {
		w.settleEach(chunk, err)
		return nil
	}
	for _, part := range byWorkspace(chunk) {
		if err = w.settleAll(context.Background(), part, rowWait); isLocked(err) {
			locked = append(locked, part...)
		} else {
			w.settleEach(part, err)
		}
	}
	return locked
}

// settleEach settles messages one by one that could not be settled together. If rows are locked, it takes those
// for which there is time, in another order each time.
func (w *Webhooks) settleEach(part []*settlement, err error) {
	for _, one := range part {
		one.err = err
	}
	if err == nil || len(part) == 1 {
		return
	}
	within, wait := settleTime, settleTime
	if isLocked(err) {
		within, wait = max(4*rowWait, cmp.Or(part[0].apart, apartWait)/6), rowWait
		rand.Shuffle(len(part), func(i, j int) { part[i], part[j] = part[j], part[i] })
	}
	ctx, cancel := context.WithTimeout(context.Background(), settleTime)
	defer cancel()
	begun := time.Now()
	for _, one := range part {
		if time.Since(begun) >= within {
			return
		}
		if alone := w.settleAll(ctx, []*settlement{one}, wait); alone == nil || ctx.Err() == nil {
			one.err = alone
		}
	}
}

func byWorkspace(chunk []*settlement) (parts [][]*settlement) {
	at := map[uuid.UUID]int{}
	for _, one := range chunk {
		i, known := at[one.WorkspaceID]
		if !known {
			i = len(parts)
			at[one.WorkspaceID], parts = i, append(parts, nil)
		}
		parts[i] = append(parts[i], one)
	}
	return parts
}

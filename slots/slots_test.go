package slots

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
)

// TestEachLimitCountsByItself takes slots until each limit leaves none.
func TestEachLimitCountsByItself(t *testing.T) {
	t.Parallel()
	s := New(Limits{Process: 3, Workspace: 2, Resource: 1}, errors.New)
	a, b := uuid.New(), uuid.New()
	for i, c := range []struct {
		id   Resource
		want string
	}{
		{Resource{a, a}, ""}, {Resource{a, a}, "resource"}, {Resource{a, b}, ""}, {Resource{a, uuid.New()}, "workspace"},
		{Resource{b, a}, ""}, {Resource{b, b}, "process"},
	} {
		if got := s.take(c.id, 1); got != c.want {
			t.Errorf("%d: %q, want %q", i, got, c.want)
		}
	}
}

// TestWaitingForASlot releases a slot while work waits for one, and then does not.
func TestWaitingForASlot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := New(Limits{Process: 1, Workspace: 1, Resource: 1}, errors.New)
		id := Resource{uuid.New(), uuid.New()}
		leave, _ := s.Enter(t.Context(), id)
		entered := make(chan error, 1)
		begun := time.Now()
		go func() {
			_, err := s.Enter(t.Context(), id)
			entered <- err
		}()
		synctest.Wait()
		leave()
		if err := <-entered; err != nil || time.Since(begun) != 0 {
			t.Errorf("the slot was taken after %s: %v, want at once", time.Since(begun), err)
		}
		if _, err := s.Enter(t.Context(), id); err == nil || err.Error() != "resource" || time.Since(begun) != Wait {
			t.Errorf("refused after %s: %v", time.Since(begun), err)
		}
	})
}

// TestOrderOfSlots lets the work that has waited longest enter first, unless its
// limit leaves it too few slots.
func TestOrderOfSlots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := New(Limits{Process: 10, Workspace: 6}, errors.New)
		a, b := Resource{Workspace: uuid.New()}, Resource{Workspace: uuid.New()}
		leaveA, _ := s.EnterN(t.Context(), a, 6)
		leaveB, _ := s.EnterN(t.Context(), b, 4)
		order := make(chan string, 10)
		enter := func(name string, r Resource, n int) {
			go func() {
				if _, err := s.EnterN(t.Context(), r, n); err == nil {
					order <- name
				}
			}()
			synctest.Wait()
		}
		enter("first of a", a, 5)
		enter("large one of b", b, 6)
		enter("second of a", a, 1)
		enter("small one of b", b, 2)
		leaveB()
		synctest.Wait()
		if got := <-order; got != "small one of b" || len(order) != 0 {
			t.Errorf("%s entered, and %d more", got, len(order))
		}
		leaveA()
		synctest.Wait()
		if got := []string{<-order, <-order}; got[0] == got[1] || len(order) != 0 || s.taken != 8 {
			t.Errorf("%v entered, and %d more; %d are taken", got, len(order), s.taken)
		}
		time.Sleep(2 * Wait)
		synctest.Wait()
		if len(s.queues) != 0 {
			t.Errorf("%d still wait", len(s.queues))
		}
	})
}

// TestTryDoesNotWait refuses at once.
func TestTryDoesNotWait(t *testing.T) {
	t.Parallel()
	s := New(Limits{Workspace: 1}, errors.New)
	r := Resource{Workspace: uuid.New()}
	leave, err := s.Try(r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Try(r); err == nil || err.Error() != "workspace" {
		t.Error(err)
	}
	leave()
	if _, err := s.Try(r); err != nil {
		t.Error(err)
	}
}

// TestResizingNeverOvertakes grows and shrinks what work has, also while other work waits.
func TestResizingNeverOvertakes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := New(Limits{Process: 10, Workspace: 8}, errors.New)
		a, b, c := Resource{Workspace: uuid.New()}, Resource{Workspace: uuid.New()}, Resource{Workspace: uuid.New()}
		if _, err := s.EnterN(t.Context(), a, 4); err != nil {
			t.Fatal(err)
		}
		if !s.Resize(a, 4, 8) || s.Resize(a, 8, 9) || s.Taken(a) != 8 {
			t.Errorf("it has %d, want 8", s.Taken(a))
		}
		entered := make(chan error, 1)
		go func() {
			_, err := s.EnterN(t.Context(), b, 6)
			entered <- err
		}()
		synctest.Wait()
		if _, err := s.EnterN(t.Context(), c, 1); err != nil {
			t.Error(err)
		}
		if s.Resize(c, 1, 2) {
			t.Error("it takes a slot for which other work waits")
		}
		if !s.Resize(a, 8, 3) {
			t.Error("it cannot be reduced")
		}
		if err := <-entered; err != nil || s.Taken(a) != 3 || s.Taken(b) != 6 {
			t.Errorf("%v: %d and %d are taken", err, s.Taken(a), s.Taken(b))
		}
		if s.Resize(a, 3, 0); s.Resize(b, 6, 0) && s.Resize(c, 1, 0) && s.taken != 0 {
			t.Errorf("%d are still taken", s.taken)
		}
	})
}

// TestWorkspacesAreServedRoundRobin has ten waiters of one workspace before one of another:
// the other is served second, and each workspace in the order in which its work came.
func TestWorkspacesAreServedRoundRobin(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := New(Limits{Process: 1, Workspace: 1}, errors.New)
		ctx, cancel := context.WithCancel(t.Context())
		a, b := Resource{Workspace: uuid.New()}, Resource{Workspace: uuid.New()}
		leave, _ := s.Enter(ctx, a)
		order := make(chan string, 20)
		enter := func(name string, r Resource) {
			go func() {
				leave, err := s.Await(ctx, r)
				if err != nil {
					return
				}
				order <- name
				time.Sleep(time.Second)
				leave()
			}()
			synctest.Wait()
		}
		for i := range 10 {
			enter(fmt.Sprint("a", i), a)
		}
		enter("b0", b)
		enter("b1", b)
		time.Sleep(10 * Wait) // work that awaits a slot keeps its place
		leave()
		for i, want := range []string{"a0", "b0", "a1", "b1", "a2", "a3"} {
			if got := <-order; got != want {
				t.Errorf("%d: %s is served, want %s", i, got, want)
			}
		}
		cancel()
		synctest.Wait()
		if len(s.queues) != 0 {
			t.Errorf("%d workspaces still wait", len(s.queues))
		}
		time.Sleep(time.Minute)
	})
}

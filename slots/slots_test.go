package slots

import (
	"errors"
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
		if got, _ := s.take(c.id); got != c.want {
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

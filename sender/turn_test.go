package sender

import (
	"context"
	"errors"
	"testing"
	"time"

	"lemma"
)

// TestALoopOutlivesAPanicOfATurn has a turn that panics, and the next one come.
func TestALoopOutlivesAPanicOfATurn(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	turns, reported := 0, 0
	every(ctx, time.Millisecond, func() error {
		if turns++; turns == 3 {
			stop()
			return nil
		}
		panic("the turn")
	}, func(err error) {
		if reported++; !errors.As(err, new(*lemma.Panic)) {
			t.Errorf("got %v", err)
		}
	})
	if turns != 3 || reported != 2 {
		t.Errorf("%d turns, %d reported", turns, reported)
	}
}

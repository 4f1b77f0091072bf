package loop

import (
	"context"
	"errors"
	"testing"
	"time"

	"lemma"
)

// TestALoopOutlivesAPanic: a run panics, and the next one comes.
func TestALoopOutlivesAPanic(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	runs, reported := 0, 0
	Every(ctx, time.Millisecond, func(context.Context) error {
		if runs++; runs == 3 {
			stop()
			return nil
		}
		panic("a run")
	}, func(err error) {
		if reported++; !errors.As(err, new(*lemma.Panic)) {
			t.Errorf("got %v", err)
		}
	})
	if runs != 3 || reported != 2 {
		t.Errorf("%d runs, %d reported", runs, reported)
	}
}

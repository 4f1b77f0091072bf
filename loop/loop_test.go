package loop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
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
		panic(fmt.Sprint("run ", runs))
	}, func(err error) {
		if reported++; !errors.As(err, new(*lemma.Panic)) {
			t.Errorf("got %v", err)
		}
	})
	if runs != 3 || reported != 2 {
		t.Errorf("%d runs, %d reported", runs, reported)
	}
}

// TestTheFirstRunOfALongPeriod: a process that is restarted more often than a period does
// the work, and one that lives does it once a period.
func TestTheFirstRunOfALongPeriod(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		period, lives time.Duration
		want          int
	}{
		{time.Hour, time.Minute + time.Second, 1},
		{time.Hour, 24 * time.Hour, 24},
		{time.Second, 10*time.Second + time.Millisecond, 10},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithTimeout(t.Context(), c.lives)
			defer stop()
			runs := 0
			Every(ctx, c.period, func(context.Context) error { runs++; return nil }, func(error) {})
			if runs != c.want {
				t.Errorf("%d runs in %v with a period of %v, want %d", runs, c.lives, c.period, c.want)
			}
		})
	}
}

func TestJitter(t *testing.T) {
	t.Parallel()
	least, most := time.Hour, time.Duration(0)
	for range 1000 {
		d := Jitter(time.Second)
		least, most = min(least, d), max(most, d)
	}
	if least < 500*time.Millisecond || most >= 1500*time.Millisecond || most-least < 500*time.Millisecond {
		t.Errorf("from %s to %s", least, most)
	}
}

// An item that fails or panics does not stop the others. The end of the context does.
func TestEachItem(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	failure := errors.New("it fails")
	var done []int
	err := Each(ctx, []int{1, 2, 3, 4, 5}, func(i int) error {
		switch i {
		case 1:
			return failure
		case 2:
			panic("an item")
		case 4:
			stop()
		}
		done = append(done, i)
		return nil
	})
	if !slices.Equal(done, []int{3, 4}) {
		t.Errorf("done: %v", done)
	}
	if !errors.Is(err, failure) || !errors.As(err, new(*lemma.Panic)) || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// An error that is repeated is reported now and then, with how often it was.
func TestRepeatedErrors(t *testing.T) {
	t.Parallel()
	away, other := errors.New("away"), errors.New("other")
	var r repeated
	for i, c := range []struct {
		err  error
		want string
	}{{away, "away"}, {away, "<nil>"}, {away, "<nil>"}, {other, "other"}, {away, "away"}, {away, "<nil>"}} {
		if got := fmt.Sprint(r.next(c.err)); got != c.want {
			t.Errorf("%d: %s, want %s", i, got, c.want)
		}
	}
	r.at = r.at.Add(-repeatedAfter)
	if got := r.next(away); !errors.Is(got, away) || got.Error() != "away (1 times more since it was last reported)" {
		t.Error(got)
	}
}

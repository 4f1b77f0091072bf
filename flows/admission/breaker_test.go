package admission

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"lemma"
)

// sourceClient asks sources of which it knows how long they take and what they answer,
// in a time of its own.
type sourceClient struct {
	*Breakers
	t *testing.T
}

func (a sourceClient) wants(source uuid.UUID, takes time.Duration, answer error, code string, within time.Duration) {
	a.t.Helper()
	begun := time.Now()
	err := a.AskForWorker(context.Background(), source, func() error { time.Sleep(takes); return answer })
	got := ""
	if e := new(lemma.Error); errors.As(err, &e) {
		got = e.Code
	}
	if d := time.Since(begun); got != code || d != within {
		a.t.Errorf("%q after %s, not %q after %s", got, d, code, within)
	}
}

// hang asks and is not answered until the time is over.
func (a sourceClient) hang(source uuid.UUID, d time.Duration) {
	go func() {
		_ = a.AskForWorker(context.Background(), source, func() error { time.Sleep(d); return sourceGone })
	}()
	synctest.Wait()
}

const codeUnavailable = "source_unavailable"

var sourceGone = &lemma.Error{Kind: lemma.Unavailable, Code: codeUnavailable}

func TestASlowSourceIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, slow, other := sourceClient{NewBreakers(4), t}, lemma.NewID(), lemma.NewID()
		a.wants(slow, 9*time.Second, nil, "", 9*time.Second) // its answer is used
		a.wants(slow, 0, nil, "source_unavailable", 0)
		a.wants(other, 0, nil, "", 0)
		time.Sleep(shutFor)
		a.wants(slow, 9*time.Second, nil, "", 9*time.Second)
		time.Sleep(shutFor)
		a.wants(slow, 0, nil, "source_unavailable", 0) // for longer this time
		time.Sleep(shutFor)
		a.wants(slow, time.Second, nil, "", time.Second) // it has recovered
		a.wants(slow, 0, nil, "", 0)
		for range 10 {
			a.wants(slow, 3*time.Second, nil, "", 3*time.Second)
			time.Sleep(shutSlow * 3 * time.Second) // for no longer than that, however often
		}
		a.wants(slow, 0, sourceGone, codeUnavailable, 0) // at once, so that it costs little to ask
		time.Sleep(shutFast - 1)
		a.wants(slow, 0, nil, "source_unavailable", 0)
		time.Sleep(time.Nanosecond)
		a.wants(slow, 3*time.Second, sourceGone, codeUnavailable, 3*time.Second)
		time.Sleep(shutMost - 1)
		a.wants(slow, 0, nil, "source_unavailable", 0)
		time.Sleep(time.Nanosecond)
		a.wants(slow, 0, nil, "", 0)
	})
}

func TestQuestionsAreHalfOfTheWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, one, two, three := sourceClient{NewBreakers(4), t}, lemma.NewID(), lemma.NewID(), lemma.NewID()
		a.hang(one, 10*time.Second)
		a.hang(two, 10*time.Second)
		a.wants(three, 0, nil, "source_busy", askPatience) // it is healthy, and has waited
		a.wants(three, 0, nil, "source_busy", 0)           // one has found out for all
		a.wants(lemma.NewID(), 0, nil, "source_busy", 0)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		a.wants(three, 0, nil, "", 0)

		time.Sleep(shutFor)
		a.hang(one, 10*time.Second) // as one that has failed
		a.wants(two, 0, nil, "source_busy", 0)
		a.wants(three, time.Second, nil, "", time.Second) // those of failing sources leave a place
		a.hang(three, 500*time.Millisecond)
		a.wants(lemma.NewID(), 0, nil, "", 500*time.Millisecond) // among the healthy one waits
		time.Sleep(10 * time.Second)                             // until nobody hangs
	})
}

func TestAHungSourceCostsOneWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, hung := sourceClient{NewBreakers(40), t}, lemma.NewID()
		a.hang(hung, 10*time.Second)
		a.hang(hung, 10*time.Second)
		a.wants(hung, 0, nil, "source_busy", askPatience)
		a.wants(hung, 0, nil, "source_busy", 0)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		a.wants(hung, 0, nil, "source_unavailable", 0)
	})
}

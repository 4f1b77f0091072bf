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

// sourceClient queries sources of a workspace whose delays and answers are given, in simulated
// time.
type sourceClient struct {
	*Breakers
	t       *testing.T
	refused map[string]int // by limit
	ws      uuid.UUID
}

func newSourceClient(t *testing.T, workers int) sourceClient {
	t.Helper()
	refused := map[string]int{}
	return sourceClient{NewBreakers(workers, func(limit string) { refused[limit]++ }), t, refused, lemma.NewID()}
}

// another is another workspace in the same process.
func (a sourceClient) another() sourceClient {
	a.ws = lemma.NewID()
	return a
}

func (a sourceClient) wants(source uuid.UUID, takes time.Duration, answer error, code string, within time.Duration) {
	a.t.Helper()
	begun := time.Now()
	err := a.QueryForWorker(context.Background(), a.ws, source, func() error { time.Sleep(takes); return answer })
	got := ""
	if e := new(lemma.Error); errors.As(err, &e) {
		got = e.Code
	}
	if d := time.Since(begun); got != code || d != within {
		a.t.Errorf("%q after %s, not %q after %s", got, d, code, within)
	}
}

// hang queries a source that does not answer until the time is over.
func (a sourceClient) hang(source uuid.UUID, d time.Duration) {
	go func() {
		_ = a.QueryForWorker(context.Background(), a.ws, source, func() error { time.Sleep(d); return sourceGone })
	}()
	synctest.Wait()
}

const codeUnavailable = "source_unavailable"

var sourceGone = &lemma.Error{Kind: lemma.Unavailable, Code: codeUnavailable}

func TestASlowSourceIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, slow, other := newSourceClient(t, 4), lemma.NewID(), lemma.NewID()
		a.wants(slow, 9*time.Second, nil, "", 9*time.Second) // its answer is used
		a.wants(slow, 0, nil, "source_unavailable", 0)
		a.wants(other, 0, nil, "", 0)
		time.Sleep(shutFor)
		a.wants(slow, 9*time.Second, nil, "", 9*time.Second)
		time.Sleep(shutFor)
		a.wants(slow, 0, nil, "source_unavailable", 0) // for longer now
		time.Sleep(shutFor)
		a.wants(slow, time.Second, nil, "", time.Second) // it has recovered
		a.wants(slow, 0, nil, "", 0)
		for range 10 {
			a.wants(slow, 3*time.Second, nil, "", 3*time.Second)
			time.Sleep(shutSlow * 3 * time.Second) // for no longer than that, however often it fails
		}
		a.wants(slow, 0, sourceGone, codeUnavailable, 0) // at once, so that another query costs little
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

func TestQuestionsOfAWorkspaceAreHalfOfTheWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, one, two, three := newSourceClient(t, 4), lemma.NewID(), lemma.NewID(), lemma.NewID()
		a.hang(one, 10*time.Second)
		a.hang(two, 10*time.Second)
		a.wants(three, 0, nil, "source_busy", slotWait) // it is healthy, and the caller has waited
		a.wants(three, 0, nil, "source_busy", 0)        // one caller has waited for all
		a.wants(lemma.NewID(), 0, nil, "source_busy", 0)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		a.wants(three, 0, nil, "", 0)

		time.Sleep(shutFor)
		a.hang(one, 10*time.Second) // like one that has failed
		a.wants(two, 0, nil, "source_busy", 0)
		a.wants(three, time.Second, nil, "", time.Second) // queries to failing sources leave a slot
		a.hang(three, 500*time.Millisecond)
		a.wants(lemma.NewID(), 0, nil, "", 500*time.Millisecond) // a caller of a healthy source waits
		time.Sleep(10 * time.Second)                             // until no query hangs
	})
}

func TestAHungSourceCostsOneWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, hung := newSourceClient(t, 40), lemma.NewID()
		a.hang(hung, 10*time.Second)
		a.hang(hung, 10*time.Second)
		a.wants(hung, 0, nil, "source_busy", slotWait)
		a.wants(hung, 0, nil, "source_busy", 0)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		a.wants(hung, 0, nil, "source_unavailable", 0)
	})
}

// A process that has queried many sources and branches does not remember those that
// answer, and remembers those that fail.
func TestSourcesThatAnswerAreForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := NewBreakers(4, nil)
		down := &lemma.Error{Kind: lemma.Unavailable}
		var failing []uuid.UUID
		for n := range 20 * leastStates {
			time.Sleep(keepFor / (leastStates / 2))
			id := lemma.NewID()
			b.Remember(id, Blocked{Source: id})
			err := b.Query(t.Context(), id, func() error {
				if n%100 == 0 {
					failing = append(failing, id)
					return down
				}
				return nil
			})
			if (err != nil) != (n%100 == 0) {
				t.Fatal(err)
			}
		}
		if n := len(b.states); n > 3*leastStates {
			t.Errorf("%d states", n)
		}
		for _, id := range failing {
			if !b.Failing(id) {
				t.Fatal("a source that fails is forgotten")
			}
		}
	})
}

// A branch that fails, and for which no enrollment waits any more, is not tried for ever, and is
// forgotten.
func TestABranchThatNothingWaitsFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newSourceClient(t, 4)
		branch, ws := lemma.NewID(), lemma.NewID()
		about := Blocked{Workspace: ws, Flow: lemma.NewID(), Node: "b"}
		fail := func() {
			a.Remember(branch, about)
			a.wants(branch, 0, sourceGone, codeUnavailable, 0)
		}
		tries := func(d time.Duration, waits bool) (n int) {
			for range int(d / time.Second) {
				time.Sleep(time.Second)
				for _, r := range a.ToRetry(time.Now())[ws] {
					if a.Take(r, time.Now()) {
						a.NoneRetried(r, time.Now(), waits)
						n++
					}
				}
			}
			return n
		}
		fail()
		if n := tries(10*time.Minute, true); n < 14 || n > 16 {
			t.Errorf("%d tries while enrollments wait that cannot be retried", n)
		}
		fail()
		if n := tries(10*time.Minute, false); n < 4 || n > 6 {
			t.Errorf("%d tries", n)
		}
		a.tidy()
		if n := len(a.states); n != 0 {
			t.Errorf("%d states", n)
		}
		fail()
		if n := tries(30*time.Second, false); n < 2 {
			t.Errorf("%d tries after the next query", n)
		}
	})
}

// A retry that has failed is made again, also if the state of its source was forgotten meanwhile.
func TestARetryThatIsPutBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newSourceClient(t, 4)
		source, ws := lemma.NewID(), lemma.NewID()
		a.Remember(source, Blocked{Workspace: ws, Source: source})
		a.wants(source, 0, sourceGone, codeUnavailable, 0)
		a.Reopen()
		a.wants(source, 0, nil, "", 0)
		for range 2 {
			due := a.ToRetry(time.Now())[ws]
			if len(due) != 1 || !due[0].Recovered || !a.Take(due[0], time.Now()) {
				t.Fatalf("%+v", due)
			}
			if a.Take(due[0], time.Now()) {
				t.Error("it is taken twice")
			}
			for range 2 * leastStates {
				a.of(lemma.NewID())
			}
			a.PutBack(due[0])
		}
	})
}

// A query that was refused before it reached its source is no evidence about the source.
func TestARefusedQueryIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, source := newSourceClient(t, 4), lemma.NewID()
		a.wants(source, 2*time.Second, overloaded("too many"), CodeOverloaded, 2*time.Second)
		a.wants(source, 0, nil, "", 0)
	})
}

// A source that refuses the connection fails, and recovers when it answers. One whose query fails has answered.
func TestASourceThatRefusesTheConnection(t *testing.T) {
	t.Parallel()
	for code, fails := range map[string]bool{"source_refused": true, "query_failed": false, "source_changed": false} {
		b := NewBreakers(4, func(string) {})
		source := lemma.NewID()
		b.Remember(source, Blocked{Workspace: lemma.NewID(), Source: source})
		failed := &lemma.Error{Kind: lemma.Invalid, Code: code}
		if err := b.Query(t.Context(), source, func() error { return failed }); !errors.Is(err, failed) {
			t.Fatal(err)
		}
		if b.Failing(source) != fails {
			t.Errorf("%s: %v", code, !fails)
		}
		b.Reopen()
		if err := b.Query(t.Context(), source, func() error { return nil }); err != nil {
			t.Fatal(err)
		}
		if n := len(b.ToRetry(time.Now())); (n == 1) != fails {
			t.Errorf("%s: %d recovered", code, n)
		}
	}
}

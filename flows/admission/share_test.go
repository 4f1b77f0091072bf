package admission

import (
	"context"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"lemma"
)

// Sources of one workspace that hang leave a place to those of another, which does not wait.
func TestSlowSourcesOfAWorkspaceLeavePlacesToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newSourceClient(t, 4)
		b, c := a.another(), a.another()
		quick := lemma.NewID()
		a.hang(lemma.NewID(), 10*time.Second)
		a.hang(lemma.NewID(), 10*time.Second)
		for range 3 {
			a.hang(lemma.NewID(), 10*time.Second) // it is refused
			b.wants(quick, 0, nil, "", 0)
		}
		time.Sleep(slotWait)
		synctest.Wait()
		a.wants(lemma.NewID(), 0, nil, "source_busy", 0) // one has waited, and a place of the other is none of its own
		if want := map[string]int{"workspace": 4}; !maps.Equal(a.refused, want) {
			t.Errorf("refused %v, want %v", a.refused, want)
		}
		b.hang(quick, 10*time.Second)
		c.wants(lemma.NewID(), 0, nil, "source_busy", slotWait)
		if a.refused["process"] != 1 {
			t.Errorf("refused %v", a.refused)
		}
		time.Sleep(10 * time.Second) // until no query hangs
	})
}

// A source of one workspace that fails does not keep those of another from being queried again.
func TestFailingSourcesOfAWorkspaceLeavePlacesToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newSourceClient(t, 4)
		b := a.another()
		one, two, other := lemma.NewID(), lemma.NewID(), lemma.NewID()
		a.wants(one, 0, sourceGone, codeUnavailable, 0)
		a.wants(two, 0, sourceGone, codeUnavailable, 0)
		b.wants(other, 0, sourceGone, codeUnavailable, 0)
		time.Sleep(shutFast)
		a.hang(one, 10*time.Second)
		a.wants(two, 0, nil, "source_busy", 0)
		b.wants(other, time.Second, nil, "", time.Second)
		time.Sleep(10 * time.Second)
	})
}

// A query that finds no place is tried again soon, and the later the more were refused. One
// that finds no place at its source is not: the source is slow.
func TestAQueryWithoutAPlaceIsTriedAgainSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, slow := newSourceClient(t, 2), lemma.NewID()
		b := a.another()
		failed := func(of sourceClient) error {
			return of.QueryForWorker(context.Background(), of.ws, slow, func() error { return nil })
		}
		a.hang(lemma.NewID(), time.Minute)
		for i := range 1000 {
			d, want := Later(failed(a)), min(laterLeast+time.Duration(i)*laterEach, laterMost)
			if d < want/2 || d >= want*3/2 {
				t.Fatalf("the %dth is tried again after %s, want about %s", i, d, want)
			}
		}
		if d := Later(failed(b)); d < laterLeast/2 || d >= laterLeast*3/2 {
			t.Errorf("the first of another workspace is tried again after %s", d)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if err := failed(a); err != nil {
			t.Error(err)
		}
		a.hang(lemma.NewID(), 10*time.Second)
		if d := Later(failed(a)); d >= laterLeast*3/2 {
			t.Errorf("after one had a place it is tried again after %s", d)
		}
		time.Sleep(10 * time.Second)
		for range queryAtOnce {
			go func() {
				_ = a.Query(context.Background(), slow, func() error { time.Sleep(time.Minute); return nil })
			}()
		}
		synctest.Wait()
		if err := failed(a); Later(err) != 0 || a.refused[LimitSource] != 1 {
			t.Errorf("%v, refused %v", err, a.refused)
		}
		time.Sleep(time.Minute)
	})
}

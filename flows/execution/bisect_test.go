package execution

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"lemma"
	"lemma/audience"
)

// How many queries isolate the profiles without a result.
func TestBisect(t *testing.T) {
	t.Parallel()
	chunk := make([]*Execution, 1000)
	for i := range chunk {
		chunk[i] = &Execution{ProfileKey: fmt.Sprint(i)}
	}
	tooLarge, fails := &lemma.Error{Kind: lemma.TooLarge, Code: audience.CodeLimit}, &lemma.Error{Kind: lemma.Invalid,
		Code: audience.CodeChanged}
	has := func(execs []*Execution, keys ...int) bool {
		for _, t := range execs {
			for _, k := range keys {
				if t == chunk[k] {
					return true
				}
			}
		}
		return false
	}
	for name, c := range map[string]struct {
		query      func(execs []*Execution, nth int) error
		asked, off int // at most: queries, and blocked executions
	}{
		"none":       {func([]*Execution, int) error { return nil }, 1, 0},
		"one":        {func(execs []*Execution, _ int) error { return when(has(execs, 7), tooLarge) }, 21, 1},
		"two":        {func(execs []*Execution, _ int) error { return when(has(execs, 7, 990), fails) }, 39, 2},
		"all":        {func([]*Execution, int) error { return fails }, bisectBlind, 1000},
		"together":   {func(execs []*Execution, _ int) error { return when(len(execs) > 63, tooLarge) }, 31, 0},
		"the source": {func([]*Execution, int) error { return &lemma.Error{Kind: lemma.Invalid, Code: audience.CodeRefused} }, 1, 1000},
		"down":       {func([]*Execution, int) error { return sourceGone }, 1, 1000},
		"ourselves":  {func([]*Execution, int) error { return errors.New("our own database") }, 1, 1000},
		"down later": {func(execs []*Execution, nth int) error {
			if nth > 3 {
				return sourceGone
			}
			return when(has(execs, 7), tooLarge)
		}, 4, 500},
	} {
		asked, answered, off := 0, 0, 0
		left, err := bisect(chunk, func(execs []*Execution) error {
			asked++
			err := c.query(execs, asked)
			if err == nil {
				answered += len(execs)
			}
			return err
		})
		for _, u := range left {
			off += len(u.execs)
		}
		if asked > c.asked || off != c.off || answered+off != len(chunk) || (err != nil) != (off > 0) {
			t.Errorf("%s: %d queries, %d answered, %d blocked, %v", name, asked, answered, off, err)
		}
	}
}

// However many profiles fail, each chunk advances others, and in the end all of them: the
// blocked ones return in another order.
func TestBisectAdvancesOthers(t *testing.T) {
	t.Parallel()
	for _, kind := range []lemma.Kind{lemma.Invalid, lemma.TooLarge} {
		for _, c := range []struct{ percent, chunks int }{{1, 1}, {3, 4}, {5, 7}, {10, 20}, {30, 100}} {
			deal := rand.New(rand.NewPCG(1, uint64(c.percent)))
			atFault, good := map[*Execution]bool{}, 0
			waiting := make([]*Execution, 1000)
			for i := range waiting {
				waiting[i] = &Execution{}
				if atFault[waiting[i]] = deal.IntN(100) < c.percent; !atFault[waiting[i]] {
					good++
				}
			}
			chunks := 0
			for ; good > 0 && chunks < 1000; chunks++ { // the part that fails grows
				deal.Shuffle(len(waiting), func(i, j int) { waiting[i], waiting[j] = waiting[j], waiting[i] })
				before := good
				left, _ := bisect(waiting, func(some []*Execution) error {
					if slices.ContainsFunc(some, func(t *Execution) bool { return atFault[t] }) {
						return &lemma.Error{Kind: kind}
					}
					good -= len(some)
					return nil
				})
				if good == before && chunks == 0 {
					t.Errorf("%s, %d %% failing: the first chunk advances none", kind, c.percent)
				}
				var again []*Execution
				for _, u := range left {
					again = append(again, u.execs...)
				}
				waiting = again
			}
			if chunks > c.chunks {
				t.Errorf("%s, %d %% failing: it takes %d chunks, not %d", kind, c.percent, chunks, c.chunks)
			}
		}
	}
}

func when(is bool, err error) error {
	if is {
		return err
	}
	return nil
}

var sourceGone = &lemma.Error{Kind: lemma.Unavailable, Code: audience.CodeUnavailable}

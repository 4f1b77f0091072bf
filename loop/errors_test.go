package loop

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// Any number of errors is one of bounded length, which has the first ones and the count.
func TestErrorsAreBounded(t *testing.T) {
	t.Parallel()
	first := errors.New("the first")
	var all Errors
	if all.Err() != nil {
		t.Error("an error of none")
	}
	for range 5 { // pages
		all.Add(Each(t.Context(), make([]int, 1000), func(int) error { return first }))
	}
	all.Add(nil)
	if err := all.Err(); !errors.Is(err, first) || strings.Count(err.Error(), "the first") != mostErrors ||
		!strings.HasSuffix(err.Error(), fmt.Sprintf("and %d more errors", 5000-mostErrors)) {
		t.Error(err)
	}
}

// The end of the context is the cause also if many items failed before.
func TestEachReportsTheEndOfItsContext(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	done := 0
	err := Each(ctx, make([]int, 1000), func(int) error {
		if done++; done == 500 {
			stop()
		}
		return errors.New("it fails")
	})
	if !errors.Is(err, context.Canceled) || done != 500 {
		t.Errorf("%d done: %v", done, err)
	}
}

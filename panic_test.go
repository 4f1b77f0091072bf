package lemma

import (
	"errors"
	"strings"
	"testing"
)

func TestRecoveredReturnsAPanicAsAnError(t *testing.T) {
	var p *Panic
	err := Recovered(func() error { return nil })
	if err != nil {
		t.Error(err)
	}
	err = Recovered(func() error { var list []int; list[3]++; return nil })
	if !errors.As(err, &p) || !strings.Contains(err.Error(), "index out of range [3]") ||
		!strings.Contains(err.Error(), "panic_test.go") {
		t.Errorf("got %v", err)
	}
	if KindOf(err) != Internal || strings.Contains(Public(p), "index") {
		t.Errorf("it is shown: %q", Public(p))
	}
}

package lemma_test

import (
	"errors"
	"strings"
	"testing"

	"lemma"
)

func TestNames(t *testing.T) {
	for _, name := range []string{"a", "Grüße 👋", " padded ", strings.Repeat("ü", lemma.MaxName)} {
		if err := lemma.CheckName(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"", " \t\n", strings.Repeat("a", lemma.MaxName+1), "nul\x00", "broken\xff"} {
		var e *lemma.Error
		if err := lemma.CheckName(name); !errors.As(err, &e) || e.Kind != lemma.Invalid || e.Fields[0].Pointer != "/name" {
			t.Errorf("%q: %v", name, err)
		}
	}
}

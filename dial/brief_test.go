package dial_test

import (
	"errors"
	"strings"
	"testing"

	"lemma/dial"
)

func TestBrief(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "", "EOF": "EOF", "bad \x00\xff\n status": "bad ??? status", "schöne Grüße": "schöne Grüße",
		strings.Repeat("x", 300): strings.Repeat("x", 300), strings.Repeat("x", 301): strings.Repeat("x", 300) + "...",
		strings.Repeat("x", 299) + "ü": strings.Repeat("x", 299) + "?...",
	} {
		if got := dial.Brief(errors.New(text)); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if got := dial.Brief(nil); got != "" {
		t.Errorf("%q", got)
	}
}

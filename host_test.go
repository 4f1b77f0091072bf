package lemma_test

import (
	"testing"

	"lemma"
)

func TestHostNames(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"Go.Shop.example.": "go.shop.example", "go.müller.example": "go.xn--mller-kva.example", "XN--mller-kva.example": "xn--mller-kva.example",
		"127.0.0.1": "127.0.0.1", "::1": "::1", "a_b.example": "a_b.example", "": "",
	} {
		if got := lemma.HostName(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

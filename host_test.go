package lemma_test

import (
	"testing"

	"lemma"
)

func TestHostNames(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"Go.Shop.example.": "go.shop.example", "go.müller.example": "go.xn--mller-kva.example", "XN--mller-kva.example": "xn--mller-kva.example",
		"127.0.0.1": "127.0.0.1", "::1": "::1", "[2606:4700:0::2222]": "2606:4700::2222",
		"[::ffff:192.0.2.1]": "192.0.2.1", "2606:4700::AB": "2606:4700::ab", "[a.example]": "[a.example]", "a_b.example": "a_b.example", "": "",
	} {
		if got := lemma.HostName(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

package smtp

import (
	"bytes"
	"strings"
	"testing"

	"lemma/sender"
	"lemma/sender/mime"
)

func written(t *testing.T, m sender.Message, dkim *signer) string {
	t.Helper()
	var w mime.Writer
	var d draft
	if err := d.write(&w, &m, &settings{dkim: dkim}); err != nil {
		t.Fatal(err)
	}
	text, ok := strings.CutSuffix(string(d.mail), "\r\n.\r\n")
	if !ok || d.size != len(d.mail)-3 {
		t.Fatalf("size %d of %d bytes ending in %q", d.size, len(d.mail), d.mail[max(0, len(d.mail)-10):])
	}
	return text + "\r\n"
}

// Two attempts send the same bytes, whichever draft they use.
func TestSameMessageSameBytes(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"", testKeyRSA, testKeyEd25519} {
		var s *signer
		if key != "" {
			s = mustSigner(t, key)
		}
		first, second := message(1), message(1)
		second.Attempt = 2
		var w mime.Writer
		var a, b, other draft
		o := message(2)
		o.FromName, o.HTML = "Another name", strings.Repeat("long ", 1000)
		for d, m := range map[*draft]*sender.Message{&a: &first, &other: &o} {
			if err := d.write(&w, m, &settings{dkim: s}); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.write(&w, &second, &settings{dkim: s}); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a.mail, b.mail) {
			t.Errorf("attempt 1:\n%s\nattempt 2:\n%s", a.mail, b.mail)
		}
	}
}

package smtp

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"lemma/sender"
)

func TestReplies(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in   string
		code int
		text string
		err  error
	}{
		{"250 ok\r\n", 250, "ok", nil},
		{"250\r\n", 250, "", nil},
		{"250 \n", 250, "", nil},
		{"250-a\r\n250-b\r\n250 c\r\n", 250, "a\nb\nc", nil},
		{"250-a\r\n550 c\r\n", 0, "", errReplyForm},
		{"25 ok\r\n", 0, "", errReplyForm},
		{"2500 ok\r\n", 0, "", errReplyForm},
		{"199 ok\r\n", 0, "", errReplyForm},
		{"600 ok\r\n", 0, "", errReplyForm},
		{"\r\n", 0, "", errReplyForm},
		{"250 " + strings.Repeat("x", mostLine-10) + "\r\n", 250, strings.Repeat("x", mostLine-10), nil},
		{"250 " + strings.Repeat("x", 3*mostLine) + "\r\n", 0, "", errReplyLong},
		{strings.Repeat("250-"+strings.Repeat("x", 1000)+"\r\n", 20), 0, "", errReplyLong},
		{"250 cut off", 0, "", io.EOF},
	} {
		for _, slow := range []bool{false, true} {
			var src io.Reader = strings.NewReader(c.in)
			if slow {
				src = iotest.OneByteReader(src)
			}
			r := replies{src: src}
			got, err := r.next()
			if !errors.Is(err, c.err) || (err == nil && (got.code != c.code || string(got.text) != c.text)) {
				t.Errorf("%.40q: %d %.40q %v, want %d %.40q %v", c.in, got.code, got.text, err, c.code, c.text, c.err)
			}
		}
	}
}

func TestCarrierID(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"2.0.0 Ok: queued as 4F2A91B":           "4F2A91B",
		"OK id=1sXyZ-0001-Ab":                   "1sXyZ-0001-Ab",
		"2.0.0 OK  1699 d9443c-20a.24 - gsmtp":  "1699",
		"Ok 0100018f-abc-000000":                "0100018f-abc-000000",
		"2.0.0 Ok":                              "",
		"thank you":                             "",
		"queued as " + strings.Repeat("1", 200): "",
		"2.6.0 <x1@y> queued as 77; invalid=no": "77",
		"queued as \x01\x02":                    "",
	} {
		if got := carrierID([]byte(text)); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestDetail(t *testing.T) {
	t.Parallel()
	long := sender.Detail(nil, strings.Repeat("é", 300), "")
	if len(long) > 200 || !strings.HasPrefix(strings.Repeat("é", 300), long) {
		t.Errorf("%d bytes, %q", len(long), long)
	}
	if got := sender.Detail(nil, "no\n  A@B.test, a@b.TEST\x00 here", "a@b.test"); got != "no [address], [address] here" {
		t.Errorf("%q", got)
	}
	// An address at the cut leaves no half of itself.
	if got := sender.Detail(nil, strings.Repeat("x", 195)+"secret@example.test", "secret@example.test"); strings.Contains(got, "secre") {
		t.Errorf("%q", got)
	}
}

func FuzzReplies(f *testing.F) {
	f.Add([]byte("250-a\r\n250 b\r\n"), 3)
	f.Add([]byte("220 x\n421"), 1)
	f.Fuzz(func(t *testing.T, in []byte, size int) {
		whole, pieces := replies{src: strings.NewReader(string(in))}, replies{src: &chunks{in, max(1, size%50)}}
		for {
			a, errA := whole.next()
			b, errB := pieces.next()
			if a.code != b.code || string(a.text) != string(b.text) || !errors.Is(errB, errA) {
				t.Fatalf("whole %d %q %v, in pieces %d %q %v", a.code, a.text, errA, b.code, b.text, errB)
			}
			if errA != nil {
				return
			}
			if a.code < 200 || a.code > 599 || len(a.text) > mostReply {
				t.Fatalf("%d with %d bytes", a.code, len(a.text))
			}
			carrierID(a.text)
			if d := sender.Detail(nil, string(a.text), "a@b"); len(d) > 200 || strings.ContainsAny(d, "\r\n\x00") {
				t.Fatalf("detail %q", d)
			}
		}
	})
}

// chunks reads a few bytes at a time.
type chunks struct {
	rest []byte
	size int
}

func (c *chunks) Read(b []byte) (int, error) {
	if len(c.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(b, c.rest[:min(c.size, len(c.rest))])
	c.rest = c.rest[n:]
	return n, nil
}

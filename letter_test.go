package lemma_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lemma"
)

func TestEnvelope(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*lemma.Envelope)
		want   []string
	}{
		"a plain one": {func(*lemma.Envelope) {}, nil},
		"one with all": {func(e *lemma.Envelope) {
			e.FromName, e.ReplyTo, e.Headers = "Å", "b@shop.example", headers("X-A", "ö")
		}, nil},
		"nobody":                {func(e *lemma.Envelope) { e.FromEmail = "" }, []string{"/from/email address"}},
		"space around":          {func(e *lemma.Envelope) { e.FromEmail += "\r\n" }, []string{"/from/email address"}},
		"a name of two lines":   {func(e *lemma.Envelope) { e.FromName = "a\nb" }, []string{"/from/name single_line"}},
		"a reply to nobody":     {func(e *lemma.Envelope) { e.ReplyTo = "nobody" }, []string{"/reply_to address"}},
		"a value of two lines":  {func(e *lemma.Envelope) { e.Headers = headers("X-A", "a\r\nBcc: b") }, []string{"/headers/X-A single_line"}},
		"a value with NUL":      {func(e *lemma.Envelope) { e.Headers = headers("X-A", "a\x00") }, []string{"/headers/X-A single_line"}},
		"a reserved name":       {func(e *lemma.Envelope) { e.Headers = headers("bCC", "a\nb") }, []string{"/headers/bCC not_reserved"}},
		"no name":               {func(e *lemma.Envelope) { e.Headers = headers("", "a") }, []string{"/headers/ header_name"}},
		"a colon, escaped":      {func(e *lemma.Envelope) { e.Headers = headers("X:/~", "a") }, []string{"/headers/X:~1~0 header_name"}},
		"a name that fits":      {func(e *lemma.Envelope) { e.Headers = headers(strings.Repeat("x", 60), "a") }, nil},
		"a name too long":       {func(e *lemma.Envelope) { e.Headers = headers(strings.Repeat("x", 61), "a") }, []string{"/headers/" + strings.Repeat("x", 61) + " header_name"}},
		"one header, two cases": {func(e *lemma.Envelope) { e.Headers = headers("X-A", "1", "X-B", "2", "x-a", "3") }, []string{"/headers/x-a duplicate"}},
		"Liquid in an address":  {func(e *lemma.Envelope) { e.FromEmail = "{{name}}@shop.example" }, []string{"/from/email not_rendered"}},
		"Liquid in a name":      {func(e *lemma.Envelope) { e.FromName = "{% if a %}b{% endif %}" }, []string{"/from/name not_rendered"}},
		"Liquid in a reply-to":  {func(e *lemma.Envelope) { e.ReplyTo = "{{reply}}@shop.example" }, []string{"/reply_to not_rendered"}},
		"Liquid in a value":     {func(e *lemma.Envelope) { e.Headers = headers("X-A", "{{ name }}") }, nil},
		"a brace in a name":     {func(e *lemma.Envelope) { e.FromName = "{Shop} }}" }, nil},
		"everything": {func(e *lemma.Envelope) { *e = lemma.Envelope{"x", "\n", "y", headers("To", "a", "A B", "c")} },
			[]string{"/from/email address", "/from/name single_line", "/headers/A B header_name", "/headers/To not_reserved", "/reply_to address"}},
	} {
		e := lemma.Envelope{FromEmail: "news@shop.example"}
		c.change(&e)
		var got []string
		for _, f := range e.Faults() {
			got = append(got, f.Pointer+" "+f.Code)
			if f.Detail == "" {
				t.Errorf("%s: %s has no detail", name, f.Pointer)
			}
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

// Whatever Faults lets pass is, in its canonical form, ASCII: no carrier can
// take anything else.
func TestCanonicalEnvelope(t *testing.T) {
	t.Parallel()
	for from, want := range map[string]string{
		"News@Shop.Example": "News@shop.example", "news@bücher.example": "news@xn--bcher-kva.example", "news@BÜCHER.example": "news@xn--bcher-kva.example",
		"news@xn--bcher-kva.example": "news@xn--bcher-kva.example", "news@例え.テスト": "news@xn--r8jz45g.xn--zckzah",
	} {
		e := lemma.Envelope{FromEmail: from, ReplyTo: from}
		if faults := e.Faults(); len(faults) > 0 {
			t.Errorf("%s is refused: %v", from, faults)
		}
		if got := e.Canonical(); got.FromEmail != want || got.ReplyTo != want {
			t.Errorf("%s: %s, %s", from, got.FromEmail, got.ReplyTo)
		}
	}
	for _, from := range []string{"jürgen@shop.example", "news@büc her.example", "news@-ü.example"} {
		if len((lemma.Envelope{FromEmail: from}).Faults()) != 1 {
			t.Errorf("%s is taken", from)
		}
	}
	if got := (lemma.Envelope{FromEmail: "a@b.example"}).Canonical(); got.ReplyTo != "" {
		t.Errorf("reply to %q", got.ReplyTo)
	}
}

func headers(pairs ...string) map[string]string {
	all := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		all[pairs[i]] = pairs[i+1]
	}
	return all
}

package mail_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lemma/mail"
)

func TestEnvelope(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*mail.Envelope)
		want   []string
	}{
		"a plain one": {func(*mail.Envelope) {}, nil},
		"one with all": {func(e *mail.Envelope) {
			e.FromName, e.ReplyTo, e.Headers = "Å", "b@shop.example", headers("X-A", "ö")
		}, nil},
		"no sender":           {func(e *mail.Envelope) { e.FromEmail = "" }, []string{"/from/email address"}},
		"space around":        {func(e *mail.Envelope) { e.FromEmail += "\r\n" }, []string{"/from/email address"}},
		"a name of two lines": {func(e *mail.Envelope) { e.FromName = "a\nb" }, []string{"/from/name single_line"}},
		"no address in reply": {func(e *mail.Envelope) { e.ReplyTo = "not an address" }, []string{"/reply_to address"}},
		"a value of two lines": {func(e *mail.Envelope) { e.Headers = headers("X-A", "a\r\nBcc: b") },
			[]string{"/headers/X-A single_line"}},
		"a value with NUL": {func(e *mail.Envelope) { e.Headers = headers("X-A", "a\x00") }, []string{"/headers/X-A single_line"}},
		"of a service":     {func(e *mail.Envelope) { e.Headers = headers("X-SMTPAPI", "{}") }, []string{"/headers/X-SMTPAPI not_reserved"}},
		"a reserved name":  {func(e *mail.Envelope) { e.Headers = headers("bCC", "a\nb") }, []string{"/headers/bCC not_reserved"}},
		"no name":          {func(e *mail.Envelope) { e.Headers = headers("", "a") }, []string{"/headers/ header_name"}},
		"a colon, escaped": {func(e *mail.Envelope) { e.Headers = headers("X:/~", "a") }, []string{"/headers/X:~1~0 header_name"}},
		"a name that fits": {func(e *mail.Envelope) { e.Headers = headers(strings.Repeat("x", 60), "a") }, nil},
		"a name too long": {
			func(e *mail.Envelope) { e.Headers = headers(strings.Repeat("x", 61), "a") },
			[]string{"/headers/" + strings.Repeat("x", 61) + " header_name"},
		},
		"one header, two cases": {
			func(e *mail.Envelope) { e.Headers = headers("X-A", "1", "X-B", "2", "x-a", "3") },
			[]string{"/headers/x-a duplicate"},
		},
		"Liquid in an address": {func(e *mail.Envelope) { e.FromEmail = "{{name}}@shop.example" }, []string{"/from/email not_rendered"}},
		"Liquid in a name":     {func(e *mail.Envelope) { e.FromName = "{% if a %}b{% endif %}" }, []string{"/from/name not_rendered"}},
		"Liquid in a reply-to": {func(e *mail.Envelope) { e.ReplyTo = "{{reply}}@shop.example" }, []string{"/reply_to not_rendered"}},
		"Liquid in a value":    {func(e *mail.Envelope) { e.Headers = headers("X-A", "{{ name }}") }, nil},
		"a brace in a name":    {func(e *mail.Envelope) { e.FromName = "{Shop} }}" }, nil},
		"everything": {func(e *mail.Envelope) { *e = mail.Envelope{"x", "\n", "y", headers("To", "a", "A B", "c")} },
			[]string{"/from/email address", "/from/name single_line", "/headers/A B header_name", "/headers/To not_reserved",
				"/reply_to address"}},
	} {
		e := mail.Envelope{FromEmail: "news@shop.example"}
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

// An envelope without faults is ASCII in its canonical form: carriers accept
// nothing else.
func TestCanonicalEnvelope(t *testing.T) {
	t.Parallel()
	for from, want := range map[string]string{
		"News@Shop.Example":          "News@shop.example",
		"news@bücher.example":        "news@xn--bcher-kva.example",
		"news@BÜCHER.example":        "news@xn--bcher-kva.example",
		"news@xn--bcher-kva.example": "news@xn--bcher-kva.example",
		"news@例え.テスト":                "news@xn--r8jz45g.xn--zckzah",
	} {
		e := mail.Envelope{FromEmail: from, ReplyTo: from}
		if faults := e.Faults(); len(faults) > 0 {
			t.Errorf("%s is refused: %v", from, faults)
		}
		if got := e.Canonical(); got.FromEmail != want || got.ReplyTo != want {
			t.Errorf("%s: %s, %s", from, got.FromEmail, got.ReplyTo)
		}
	}
	for _, from := range []string{"jürgen@shop.example", "news@büc her.example", "news@-ü.example"} {
		if len((mail.Envelope{FromEmail: from}).Faults()) != 1 {
			t.Errorf("%s is accepted", from)
		}
	}
	if got := (mail.Envelope{FromEmail: "a@b.example"}).Canonical(); got.ReplyTo != "" {
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

package smtp

import (
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lemma/sender"
	"lemma/sender/trace"
)

// traced sends a message to a server and returns what was recorded.
func traced(t *testing.T, s *server, more, password string, o Options, change func(*carrier)) (conversation []string, r sender.Receipt) {
	t.Helper()
	host, port, _ := net.SplitHostPort(s.address)
	var secrets []byte
	if password != "" {
		secrets, _ = json.Marshal(map[string]string{"password": password})
		more += `,"username":"lemma"`
	}
	recorded := trace.New(secrets)
	o.AllowPrivate = true
	opened, err := Kind(o).Open(sender.Account{Config: fmt.Appendf(nil, `{"host":%q,"port":%s,"helo":"here"%s}`, host, port, more),
		Secrets: secrets, Trace: recorded, CallTimeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	c := opened.(*carrier)
	change(c)
	r = c.Send(t.Context(), messages(1))[0]
	c.Close()
	steps, _ := recorded.Steps()
	last := time.Duration(0)
	for _, one := range steps {
		if one.After < last {
			t.Errorf("the step %+v is before the one before", one)
		}
		last = one.After
		text := one.Text
		if one.Part == trace.PartHeader {
			text = fmt.Sprintf("(%d headers)", 1+strings.Count(one.Text, "\n"))
		}
		if one.Part == trace.PartBody && one.Bytes > 0 {
			text += "(body)"
		}
		if one.TLS != nil {
			text = fmt.Sprint(one.TLS.Version, one.TLS.Names)
		}
		conversation = append(conversation, one.Type[:1]+" "+strings.ReplaceAll(text, s.address, "server"))
	}
	return conversation, r
}

// The conversation is recorded line by line, without the password and the body.
func TestTheConversationIsRecorded(t *testing.T) {
	t.Parallel()
	config, roots := certificate(t)
	trusting := func(c *carrier) { c.roots = roots }
	s := serve(t, &server{offers: "PIPELINING AUTH=x STARTTLS AUTH PLAIN", tls: config})
	got, r := traced(t, s, `,"tls":"starttls"`, "hunter22", Options{ShowPrivate: true}, trusting)
	greeting := []string{"s EHLO here", "r 250-test", "r 250-PIPELINING", "r 250-AUTH=x", "r 250-STARTTLS", "r 250-AUTH", "r 250-PLAIN",
		"r 250 HELP"}
	want := append([]string{"c server", "r 220 test ESMTP"}, greeting...)
	want = append(want, "s STARTTLS", "r 220 go", "s TLS 1.3[127.0.0.1]")
	want = append(want, greeting...)
	want = append(want, "f the server offers neither AUTH PLAIN nor AUTH LOGIN")
	if d := cmp.Diff(want, got); d != "" || r.Reason != "auth_failed" {
		t.Errorf("%+v (-want +got): %s", r, d)
	}
}

// A password is replaced in AUTH PLAIN and in both steps of AUTH LOGIN.
func TestThePasswordIsNotRecorded(t *testing.T) {
	t.Parallel()
	envelope := []string{"s MAIL FROM:<news@shop.example>", "r 250 ok", "s RCPT TO:<user1@example.test>", "r 250 ok", "s DATA", "r 354 go",
		"s (8 headers)", "s (body)", "r 250 2.0.0 Ok: queued as ABC123", "s QUIT", "r 221 bye"}
	for mechanism, login := range map[string][]string{
		"PLAIN": {"s AUTH PLAIN [redacted]", "r 235 ok"},
		"LOGIN": {"s AUTH LOGIN", "r 334 user", "s [redacted]", "r 334 password", "s [redacted]", "r 235 hello lemma [redacted]"},
	} {
		s := serve(t, &server{})
		steps := 0
		s.answer = func(verb string, _ int) string {
			switch {
			case verb == "EHLO":
				return "250-test\r\n250 AUTH " + mechanism
			case verb == "AUTH" && mechanism == "LOGIN":
				return "334 user"
			case verb != strings.ToUpper(verb) && verb != "greeting" && verb != "body":
				steps++
				return []string{"334 password", "235 hello lemma hunter22"}[steps-1]
			}
			return ""
		}
		got, r := traced(t, s, `,"tls":"none"`, "hunter22", Options{ShowPrivate: true}, func(*carrier) {})
		want := append([]string{"c server", "r 220 test ESMTP", "s EHLO here", "r 250-test", "r 250 AUTH " + mechanism}, login...)
		if d := cmp.Diff(append(want, envelope...), got); d != "" || r.Outcome != sender.Accepted {
			t.Errorf("%s: %+v (-want +got): %s", mechanism, r, d)
		}
	}
}

// Of a server at a private address only numbers are recorded until the login is complete,
// and no names of its certificate.
func TestRepliesOfPrivateServersAreHidden(t *testing.T) {
	t.Parallel()
	config, roots := certificate(t)
	s := serve(t, &server{offers: "STARTTLS", tls: config})
	got, _ := traced(t, s, `,"tls":"starttls"`, "", Options{}, func(c *carrier) { c.roots = roots })
	const hidden = " [hidden: the server has a private address]"
	want := []string{"c server", "r 220" + hidden, "s EHLO here", "r 250" + hidden, "s STARTTLS", "r 220" + hidden, "s TLS 1.3[]",
		"s EHLO here", "r 250" + hidden, "s MAIL FROM:<news@shop.example>", "r 250 ok"}
	if d := cmp.Diff(want, got[:len(want)]); d != "" {
		t.Error(d)
	}
}

// The answer names the step that hangs.
func TestAHangingStepIsRecorded(t *testing.T) {
	t.Parallel()
	s := serve(t, &server{answer: func(verb string, _ int) string {
		if verb == "RCPT" {
			return hang
		}
		return ""
	}})
	got, r := traced(t, s, `,"tls":"none"`, "", Options{ShowPrivate: true}, func(*carrier) {})
	if last := got[len(got)-2:]; r.Reason != "timeout" || last[0] != "s RCPT TO:<user1@example.test>" || last[1] != "f no answer in time" {
		t.Errorf("%+v, %q", r, got)
	}
}

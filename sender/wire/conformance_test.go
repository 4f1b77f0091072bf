package wire_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"lemma/sender"
	"lemma/sender/sendertest"
	"lemma/sender/wire"
)

// plain is a carrier that posts JSON and reads the answer's status and body.
type plain struct {
	*wire.Client
	url *url.URL
}

func open(t *testing.T, server *sendertest.HTTPServer, o wire.Options) *plain {
	t.Helper()
	to, err := url.Parse(server.URL + "/send")
	if err != nil {
		t.Fatal(err)
	}
	o.AllowPrivate, o.AllowStrange, o.ShowPrivate, o.Roots, o.Trace = true, true, !server.Hides, server.Roots, server.Trace
	if o.Timeout == 0 {
		o.Timeout = 4 * time.Second
	}
	c := &plain{Client: wire.New(o), url: to}
	t.Cleanup(c.Close)
	return c
}

func (p *plain) Send(ctx context.Context, messages []sender.Message) []sender.Receipt {
	return p.Each(ctx, messages, p.send)
}

func (p *plain) send(ctx context.Context, m *sender.Message) sender.Receipt {
	body, _ := json.Marshal(map[string]string{"to": m.To, "html": m.HTML})
	header := http.Header{"Content-Type": {"application/json"}, "Attempt": {fmt.Sprint(m.Attempt)}}
	a, failure := p.Post(ctx, wire.Request{URL: p.url, Header: header, Body: body, StartBy: m.StartBy})
	if failure != nil {
		return *failure
	}
	r := sender.Receipt{Code: a.Status, At: time.Now(), Detail: a.Text(string(a.Body), m.To), RetryAfter: a.RetryAfter()}
	switch {
	case a.Status == 200 && a.Whole && string(a.Body) == "ok":
		r.Outcome = sender.Accepted
	case a.Status == 429:
		r.Outcome, r.Provider, r.Reason = sender.NotAccepted, true, "throttled"
	case a.Status == 409:
		r.Outcome, r.Reason = sender.NotAccepted, "refused"
	case a.Status == 400:
		r.Outcome, r.Reason = sender.Rejected, "rejected"
	default:
		r.Outcome, r.Reason = sender.Unknown, "unclear"
	}
	return r
}

func recipient(r sendertest.Received) string {
	var m struct{ To string }
	_ = json.Unmarshal(r.Body, &m)
	return m.To
}

func address(n int) string { return fmt.Sprintf("user%d@example.test", n) }

func TestConformance(t *testing.T) {
	t.Parallel()
	sendertest.HTTPConformance(t, sendertest.HTTPHarness{
		Open: func(t *testing.T, s *sendertest.HTTPServer) sender.Carrier { return open(t, s, wire.Options{}) },
		To:   recipient, Address: address,
		Reasons: append(documentedReasons(t), "throttled", "refused", "rejected", "unclear"),
		Replies: map[sendertest.Behaviour]sendertest.Reply{
			sendertest.Accept: {Body: "ok"}, sendertest.Refuse: {Status: 409},
			sendertest.Reject: {Status: 400, Body: "never\r\nUSER2@example.test " + strings.Repeat("x", 300)},
		},
		Cases: append(sendertest.OtherAnswers(func(status int) sender.Receipt {
			return sender.Receipt{Outcome: sender.Unknown, Reason: "unclear", Code: status}
		}), sendertest.HTTPCase{Name: "throttled", Reply: sendertest.Reply{Status: 429, Header: map[string]string{"Retry-After": "3"}},
			Want: sender.Receipt{Outcome: sender.NotAccepted, Provider: true, Reason: "throttled", Code: 429}},
			sendertest.HTTPCase{Name: "no answer", Reply: sendertest.Reply{Hang: true},
				Want: sender.Receipt{Outcome: sender.Unknown, Reason: "timeout"}}),
	})
}

// documentedReasons are the words of the table in the package's comment.
func documentedReasons(t *testing.T) (all []string) {
	t.Helper()
	source, err := os.ReadFile("wire.go")
	if err != nil {
		t.Fatal(err)
	}
	table, _, _ := strings.Cut(string(source), "// Errors of the network")
	for line := range strings.SplitSeq(table, "\n") {
		if columns := regexp.MustCompile(`\s{2,}|\t`).Split(line, -1); len(columns) > 3 {
			reason, _, _ := strings.Cut(columns[len(columns)-1], ";")
			all = append(all, reason)
		}
	}
	if len(all) < 8 {
		t.Fatalf("the table has only %q", all)
	}
	return all
}

package gateway

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"lemma"
	"lemma/sender"
	"lemma/sender/sendertest"
	"lemma/sender/wire"
	"lemma/signing"
)

var testSecret = signing.Secret([]byte("0123456789abcdef0123456789abcdef"))

func addressOf(n int) string { return fmt.Sprintf("user%d@example.test", n) }

func accountAt(t *testing.T, s *sendertest.HTTPServer, channel lemma.Channel, more string) *carrier {
	t.Helper()
	c, err := open(sender.Account{Channel: channel, Trace: s.Trace,
		Config:  fmt.Appendf(nil, `{"url":%q,"timeout_seconds":4,"headers":{"X-Tenant":"a"}%s}`, s.URL+"/send?a=b", more),
		Secrets: fmt.Appendf(nil, `{"signing_secret":%q,"headers":{"Authorization":"Bearer x"}}`, testSecret),
	}, wire.Operator{AllowPrivate: true, ShowPrivate: !s.Hides, Roots: s.Roots})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func bodyOf(r sendertest.Received) map[string]any {
	var body map[string]any
	_ = json.Unmarshal(r.Body, &body)
	return body
}

func recipient(r sendertest.Received) string {
	to, _ := bodyOf(r)["to"].(string)
	return to
}

// content is a request's body without its attempt.
func content(r sendertest.Received) []byte {
	return regexp.MustCompile(`"attempt":\d+,`).ReplaceAll(r.Body, nil)
}

// verify returns what is wrong with a request by Standard Webhooks. Its id begins with a
// text.
func verify(r sendertest.Received, id string) error {
	verifier, err := standardwebhooks.NewWebhook(testSecret)
	if err != nil {
		return err
	}
	if !strings.HasPrefix(r.Header.Get("webhook-id"), id) || r.Header.Get("Content-Type") != "application/json" {
		return fmt.Errorf("the id %q, the type %q", r.Header.Get("webhook-id"), r.Header.Get("Content-Type"))
	}
	return verifier.Verify(r.Body, r.Header)
}

func TestConformance(t *testing.T) {
	t.Parallel()
	unknown := func(status int) sender.Receipt {
		return sender.Receipt{Outcome: sender.Unknown, Reason: "server_error", Code: status}
	}
	provider := func(status int, reason string, definite bool) sender.Receipt {
		return sender.Receipt{Outcome: sender.NotAccepted, Provider: true, Definite: definite, Reason: reason, Code: status}
	}
	rejected := func(status int, reason string) sender.Receipt {
		return sender.Receipt{Outcome: sender.Rejected, Reason: reason, Code: status}
	}
	var cases []sendertest.HTTPCase
	for _, c := range sendertest.OtherAnswers(unknown) {
		if c.Want.Code == http.StatusOK {
			c.Want = sender.Receipt{Outcome: sender.Accepted}
		}
		cases = append(cases, c)
	}
	later := map[string]string{"Retry-After": "3"}
	for _, c := range []struct {
		status int
		header map[string]string
		want   sender.Receipt
	}{
		{404, nil, rejected(404, "message_rejected")}, {410, nil, rejected(410, "message_rejected")},
		{422, nil, rejected(422, "message_rejected")}, {413, nil, rejected(413, "message_too_large")},
		{401, nil, provider(401, "access_denied", true)}, {403, nil, provider(403, "access_denied", true)},
		{429, nil, provider(429, "throttled", false)}, {429, later, provider(429, "throttled", false)},
		{503, later, provider(503, "unavailable", false)}, {503, nil, unknown(503)}, {409, nil, unknown(409)}, {408, nil, unknown(408)},
		{299, nil, sender.Receipt{Outcome: sender.Accepted}},
	} {
		cases = append(cases, sendertest.HTTPCase{Name: fmt.Sprint(c.status, c.header),
			Reply: sendertest.Reply{Status: c.status, Header: c.header, Body: `{"error":"no"}`}, Want: c.want})
	}
	sendertest.HTTPConformance(t, sendertest.HTTPHarness{
		Open: func(t *testing.T, s *sendertest.HTTPServer) sender.Carrier {
			return accountAt(t, s, "", `,"responses":{"statuses":{"not_accepted":[425]}}`)
		},
		Verify: func(r sendertest.Received) error { return verify(r, "ntf_") },
		To:     recipient, Same: content, Address: addressOf, Reasons: sendertest.Reasons(t, "gateway.go", "../wire/wire.go"), Cases: cases,
		Replies: map[sendertest.Behaviour]sendertest.Reply{
			sendertest.Accept: {Status: 202, Body: `{"id":"m-1"}`},
			sendertest.Reject: {Status: 400, Body: `{"error":"never USER2@example.test"}`},
			sendertest.Refuse: {Status: 425, Body: `{"error":"later"}`},
		},
	})
}

func TestRequests(t *testing.T) {
	t.Parallel()
	m := sender.Message{
		Notification: "ntf_0abc", Attempt: 2, To: "x", FromName: "Shop", FromEmail: "news@shop.example", ReplyTo: "reply@shop.example",
		Headers: [][2]string{{"List-Unsubscribe", "<https://shop.example/u>"}}, Subject: "Grüße", HTML: "<p>x</p>", Text: "x",
		Link: "https://shop.example", Data: map[string]string{"a": "b"},
		Date: time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC), Seed: uuid.UUID{1},
	}
	for channel, want := range map[lemma.Channel]map[string]any{
		lemma.Email: {"from": map[string]any{"email": "news@shop.example", "name": "Shop"}, "reply_to": "reply@shop.example",
			"subject": "Grüße",
			"html":    "<p>x</p>", "text": "x",
			"headers": []any{map[string]any{"name": "List-Unsubscribe", "value": "<https://shop.example/u>"}}},
		lemma.SMS:  {"text": "x"},
		lemma.Push: {"title": "Grüße", "body": "x", "link": "https://shop.example", "data": map[string]any{"a": "b"}},
	} {
		s := sendertest.ServeHTTPS(t, true, func(sendertest.Received) sendertest.Reply { return sendertest.Reply{Body: `{"id":7}`} })
		if r := accountAt(t, s, channel, "").Send(t.Context(), []sender.Message{m})[0]; r.Outcome != sender.Accepted || r.CarrierID != "7" {
			t.Fatalf("%+v", r)
		}
		got := s.Received(func(sendertest.Received) bool { return true })[0]
		maps.Copy(want, map[string]any{"type": "message.send", "notification_id": "ntf_0abc", "attempt": 2.0,
			"channel": string(channel), "to": "x", "date": "2026-07-01T12:00:00Z", "seed": m.Seed.String()})
		if diff := cmp.Diff(want, bodyOf(got)); diff != "" {
			t.Error(channel, diff)
		}
		if err := verify(got, "ntf_0abc.2"); err != nil {
			t.Error(err)
		}
		if got.Header.Get("X-Tenant") != "a" || got.Header.Get("Authorization") != "Bearer x" || got.Path != "/send" || got.Query != "a=b" {
			t.Errorf("%+v", got)
		}
	}
}

// The id is found by a pointer that the settings name, so that any value could be read.
func TestIDsOfPrivateServersAreHidden(t *testing.T) {
	t.Parallel()
	for _, hides := range []bool{false, true} {
		s := sendertest.ServeHTTPS(t, true, func(sendertest.Received) sendertest.Reply { return sendertest.Reply{Body: `{"id":7}`} })
		s.Hides = hides
		m := sender.Message{Notification: "ntf_0abc", Attempt: 1, To: addressOf(1), Text: "x"}
		r := accountAt(t, s, lemma.SMS, "").Send(t.Context(), []sender.Message{m})[0]
		if r.Outcome != sender.Accepted || (r.CarrierID == "") != hides {
			t.Errorf("answers are hidden: %v; %+v", hides, r)
		}
	}
}

// The ids of many services have 64 bits.
func TestLongNumbersOfAnswers(t *testing.T) {
	t.Parallel()
	r := responses{id: "/id", field: "/id", values: outcomes{accepted: []string{"9007199254740993"}, rejected: []string{"9007199254740992"}}}
	for id, want := range map[string]sender.Outcome{"9007199254740993": sender.Accepted, "9007199254740992": sender.Rejected,
		"9007199254740993} {}": sender.Unknown} {
		a := &wire.Answer{Status: 200, Header: http.Header{}, Body: []byte(`{"id":` + id + `}`), Whole: true}
		got := r.receipt(a, &sender.Message{To: "x"})
		if got.Outcome != want || want == sender.Accepted && got.CarrierID != id {
			t.Errorf("%s: %+v", id, got)
		}
	}
}

func TestMappedAnswers(t *testing.T) {
	t.Parallel()
	s, err := parse(json.RawMessage(`{"url":"https://gw.example/send","responses":{
		"field":"/result/0/state","id":"/result/0/a~1b","error":"/why",
		"values":{"accepted":["queued","1"],"rejected":["dead"],"not_accepted":["busy","false"]},
		"statuses":{"accepted":[409],"rejected":[451],"not_accepted":[500]}}}`),
		fmt.Appendf(nil, `{"signing_secret":%q}`, testSecret), wire.Operator{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		status int
		body   string
		want   sender.Outcome
	}{
		{200, `{"result":[{"state":"queued","a/b":"7"}]}`, sender.Accepted}, {200, `{"result":[{"state":1,"a/b":"7"}]}`, sender.Accepted},
		{202, `{"result":[{"state":"dead"}],"why":"gone"}`, sender.Rejected},
		{200, `{"result":[{"state":"busy"}],"why":"gone"}`, sender.NotAccepted},
		{200, `{"result":[{"state":false}],"why":"gone"}`, sender.NotAccepted},
		{200, `{"result":[{"state":"new"}]}`, sender.Unknown}, {200, `{"result":[]}`, sender.Unknown}, {200, `nonsense`, sender.Unknown},
		{409, ``, sender.Accepted}, {451, `{"why":"gone"}`, sender.Rejected},
		{500, `{"why":"gone"}`, sender.NotAccepted}, {502, ``, sender.Unknown},
	} {
		a := &wire.Answer{Status: c.status, Header: http.Header{}, Body: []byte(c.body), Whole: true}
		r := s.responses.receipt(a, &sender.Message{To: "x"})
		if r.Outcome != c.want || strings.Contains(c.body, "gone") != (r.Detail == "gone") ||
			strings.Contains(c.body, `"7"`) != (r.CarrierID == "7") {
			t.Errorf("%d %s: %+v", c.status, c.body, r)
		}
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	secret := fmt.Sprintf(`{"signing_secret":%q}`, testSecret)
	for _, c := range []struct{ name, config, secrets, faults string }{
		{"a URL", `{"url":"https://gw.example/send?a=b"}`, secret, ""},
		{"nothing", `{}`, ``, "/config/url /secrets/signing_secret"},
		{"without TLS", `{"url":"http://gw.example"}`, secret, "/config/url"},
		{"with a user", `{"url":"https://a:b@gw.example"}`, secret, "/config/url"},
		{"a private address", `{"url":"https://127.0.0.1"}`, secret, "/config/url"},
		{"a short secret", `{"url":"https://gw.example"}`, `{"signing_secret":"whsec_YQ=="}`, "/secrets/signing_secret"},
		{"headers", `{"url":"https://gw.example","headers":{"Host":"x","A b":"x","C":"x\r\nD: y","Webhook-Id":"1"}}`, secret,
			"/config/headers/A b /config/headers/C /config/headers/Host /config/headers/Webhook-Id"},
		{"a status twice", `{"url":"https://gw.example","responses":{"statuses":{"accepted":[200],"rejected":[200]}}}`, secret,
			"/config/responses/statuses"},
		{"a status of none", `{"url":"https://gw.example","responses":{"statuses":{"accepted":[100]}}}`, secret, "/config/responses/statuses"},
		{"values without a field", `{"url":"https://gw.example","responses":{"values":{"accepted":["a"]}}}`, secret, "/config/responses/values"},
		{"a pointer", `{"url":"https://gw.example","responses":{"id":"id"}}`, secret, "/config/responses/id"},
		{"an unknown member", `{"url":"https://gw.example","responses":{"ids":"/id"}}`, secret, "/config/responses/ids"},
	} {
		sendertest.CheckSettings(t, Kind(wire.Operator{}), c.name, c.config, c.secrets, c.faults)
	}
}

func TestMoves(t *testing.T) {
	t.Parallel()
	at := func(url string) json.RawMessage { return fmt.Appendf(nil, `{"url":%q}`, url) }
	for _, c := range []struct {
		before, after string
		moves         bool
	}{
		{"https://a.example/x", "https://A.example/y?z", false}, {"https://a.example", "https://b.example", true},
		{"https://a.example", "http://a.example", true}, {"https://a.example", "https://a.example:444", true},
	} {
		if got := Moves(at(c.before), at(c.after), json.RawMessage(`{}`)); (len(got) > 0) != c.moves {
			t.Errorf("%+v: %q", c, got)
		}
	}
	if len(Warnings(at("http://a.example"))) != 1 || len(Warnings(at("https://a.example"))) != 0 {
		t.Error("warnings about http")
	}
}

func FuzzAnswers(f *testing.F) {
	f.Add(200, `{"id":"7","state":"queued"}`, "/state")
	f.Add(400, `[{"error":"x"}]`, "/0/error")
	f.Add(503, `nonsense`, "/~0~1/")
	f.Fuzz(func(t *testing.T, status int, body, pointer string) {
		if status < 200 || status > 999 || pointer == "" || pointer[0] != '/' {
			return
		}
		r := responses{field: pointer, values: outcomes{accepted: []string{"queued"}}, id: pointer, failure: pointer}
		one := r.receipt(&wire.Answer{Status: status, Header: http.Header{}, Body: []byte(body), Whole: true}, &sender.Message{To: "x@y.test"})
		if one.Outcome == sender.Accepted && status >= 300 {
			t.Errorf("%+v for %d %q", one, status, body)
		}
		sendertest.CheckAnswer(t, one, status, "x@y.test")
	})
}

package api

import (
	"maps"
	"net"
	"strconv"
	"strings"
	"testing"

	"lemma/dev/catcher"
	"lemma/pgtest"
	"lemma/suppression"
)

// checkProviderTests tests a provider whose server cannot be reached.
func (b *bundle) checkProviderTests(w world) {
	b.T.Helper()
	got := b.do("POST", "/v1/providers/"+w.provider+"/test", toAda).is(200)
	if got.text("outcome") != "not_accepted" || got.text("reason") != "connect_failed" || got.text("failure_of") != "provider" ||
		!strings.Contains(got.text("effect"), "circuit opens") {
		b.T.Errorf("%s", got.body)
	}
}

var toAda = object{"to": "Ada@Shop.example", "from": object{"email": "news@shop.example", "name": "Shop"}}

// catcherProvider makes a provider that sends to a catcher.
func (b *bundle) catcherProvider() (path string, far *catcher.Catcher) {
	b.T.Helper()
	far, err := catcher.Start(catcher.Options{LockStep: true})
	b.Must(err)
	b.T.Cleanup(far.Close)
	host, port, _ := net.SplitHostPort(far.Addr())
	number, _ := strconv.Atoi(port)
	made := b.do("POST", "/v1/providers", object{"name": "catcher", "kind": "smtp",
		"config": object{"host": host, "port": number, "tls": "none", "helo": "lemma.test"}}).is(201)
	return "/v1/providers/" + made.id() + "/test", far
}

// lines are what a test has sent and received.
func (a answered) lines() (all []string) {
	for _, one := range a.json["conversation"].([]any) {
		step := one.(object)
		text, _ := step["text"].(string)
		all = append(all, step["type"].(string)+": "+text)
	}
	return all
}

// The test of a provider sends one message at once and answers with the conversation. It
// writes no attempt and leaves the circuit as it is.
func TestProviderTest(t *testing.T) {
	b := setup(t)
	path, far := b.catcherProvider()
	got := b.do("POST", path, toAda).is(200)
	if got.text("outcome") != "accepted" || got.json["failure_of"] != nil || got.json["truncated"] != false {
		t.Errorf("%s", got.body)
	}
	conversation := strings.Join(got.lines(), "\n")
	for _, want := range []string{"connected: 127.0.0.1:", "received: 220 ", "sent: EHLO lemma.test", "sent: MAIL FROM:<news@shop.example>",
		"sent: RCPT TO:<Ada@shop.example>", "sent: DATA", "received: 354 ", "Subject: Test message", "sent: QUIT"} {
		if !strings.Contains(conversation, want) {
			t.Errorf("no %q in %s", want, conversation)
		}
	}
	if strings.Contains(conversation, "This is a test message") {
		t.Errorf("the body is shown: %s", conversation)
	}
	if caught := far.Ledger(); len(caught) != 1 || caught[0].Recipient != "Ada@shop.example" {
		t.Errorf("caught %+v", caught)
	}
	if n := b.Count(`select count(*) from attempts`) + b.Count(`select count(*) from notifications`); n != 0 {
		t.Errorf("%d rows were written", n)
	}
	if log := b.log.String(); !strings.Contains(log, `"provider tested"`) || strings.Contains(log, "ada@") || strings.Contains(log, "Ada@") {
		t.Errorf("log: %s", log)
	}
}

// A process is killed during a test. Repeated under its key, the test sends nothing, since
// the first message may have arrived, unless the process was killed before the call.
func TestAProviderTestIsNotRepeated(t *testing.T) {
	b := setup(t)
	path, far := b.catcherProvider()
	under := header("Idempotency-Key", "once")
	killed := `update idempotency_keys set status = null, headers = null, body = null, locked_until = now() - interval '1 second'`
	b.do("POST", path, toAda, under).is(200)
	b.Exec(killed)
	for range 2 { // the second time it is replayed
		got := b.do("POST", path, toAda, under).is(200)
		if got.text("outcome") != "unknown" || got.text("reason") != "earlier_request" || !strings.Contains(got.text("effect"), "new key") {
			t.Errorf("%s", got.body)
		}
	}
	if n := len(far.Ledger()); n != 1 {
		t.Errorf("%d messages", n)
	}
	b.Exec(killed + `, called_at = null`)
	if got := b.do("POST", path, toAda, under).is(200); got.text("outcome") != "accepted" || len(far.Ledger()) != 2 {
		t.Errorf("%d messages: %s", len(far.Ledger()), got.body)
	}
}

func TestProviderTestOfATemplate(t *testing.T) {
	b := setup(t)
	path, far := b.catcherProvider()
	template := b.do("POST", "/v1/templates", object{"name": "News", "subject": "Hi {{ name }}", "html": "<p>Hi {{ name }}</p>"}).is(201).id()
	sms := b.do("POST", "/v1/templates", object{"name": "SMS", "channel": "sms", "text": "Hi"}).is(201).id()
	with := func(change object) object {
		in := object{"to": "ada@shop.example", "from": toAda["from"], "template_id": template, "data": object{"name": "Grace"}}
		maps.Copy(in, change)
		return in
	}
	b.do("POST", path, with(nil)).is(200)
	if source, _ := far.Source(far.Ledger()[0].N); !strings.Contains(string(source), "Subject: Hi Grace") {
		t.Errorf("sent %s", source)
	}
	b.do("POST", path, with(object{"template_id": sms})).fault(422, "/template_id", "wrong_channel")
	b.do("POST", path, with(object{"template_id": "tpl_nothing"})).fault(422, "/template_id", "unknown_id")
	b.do("POST", path, with(object{"version": 2})).fault(422, "/version", "unknown_version")
	b.do("POST", path, with(object{"text": "x"})).fault(422, "/template_id", "not_allowed")
	if n := len(far.Ledger()); n != 1 {
		t.Errorf("%d messages", n)
	}
}

func TestProviderTestsThatAreRefused(t *testing.T) {
	b := setup(t)
	path, far := b.catcherProvider()
	b.do("POST", path, object{"to": "nonsense", "from": toAda["from"]}).fault(422, "/to", "invalid_address")
	b.do("POST", path, object{"to": "ada@shop.example"}).fault(422, "/from", "required")
	b.do("POST", path, object{"to": "ada@shop.example", "from": object{"email": "x"}}).is(422)
	b.do("POST", path, object{"to": "ada@shop.example", "from": toAda["from"], "subject": "a\r\nBcc: b@c.example"}).is(422)
	b.do("POST", path, toAda, as(b.other)).is(404)
	b.do("POST", "/v1/providers/prv_nothing/test", toAda).is(404)
	b.do("POST", path, toAda, as(b.key(b.Workspace, "providers:write", "providers:read"))).is(403)
	if n := len(far.Ledger()); n != 0 {
		t.Errorf("%d messages", n)
	}
	b.do("POST", path, toAda, as(b.key(b.Workspace, "providers:test"))).is(200)
}

// Bounces and complaints refuse a test in any spelling of the address. An unsubscription
// does not, since a test is no marketing.
func TestProviderTestsRespectSuppressions(t *testing.T) {
	b := setup(t)
	path, far := b.catcherProvider()
	for _, cause := range suppression.Causes {
		made := b.do("POST", "/v1/suppressions", object{"channel": "email", "address": "ADA@shop.example", "cause": cause}).is(201)
		switch cause {
		case suppression.Unsubscribed, suppression.Manual:
			b.do("POST", path, toAda).is(200)
		default:
			got := b.do("POST", path, toAda).is(409)
			if got.problem.Code != "suppressed" || !strings.Contains(got.problem.Detail, cause) {
				t.Errorf("%s: %s", cause, got.body)
			}
		}
		b.do("DELETE", "/v1/suppressions/"+made.id(), nil).is(204)
	}
	if n := len(far.Ledger()); n != 2 {
		t.Errorf("%d messages, want 2", n)
	}
}

// A workspace has ten tests at once; another workspace has its own. A refused request
// can be repeated under its Idempotency-Key.
func TestProviderTestsAreLimited(t *testing.T) {
	b := setup(t)
	path, far := b.catcherProvider()
	for range 10 {
		b.do("POST", path, toAda).is(200)
	}
	key := header("Idempotency-Key", "one")
	if got := b.do("POST", path, toAda, key).is(429); got.problem.Code != "rate_limited" || got.header.Get("Retry-After") != "6" {
		t.Errorf("%s", got.body)
	}
	if n := len(far.Ledger()); n != 10 {
		t.Errorf("%d messages, want 10", n)
	}
	b.Must(b.deps.Providers.AcquireTest(t.Context(), pgtest.Workspace(t, b.Pool)))
	b.Exec(`update provider_test_meters set next_free_at = next_free_at - interval '6 s'`)
	b.do("POST", path, toAda, key).is(200)
	b.do("POST", path, toAda).is(429)
}

// A test that is repeated under its Idempotency-Key sends one message. The replay has no
// conversation, and so no address.
func TestARepeatedProviderTestSendsOnce(t *testing.T) {
	b := setup(t)
	path, far := b.catcherProvider()
	key := header("Idempotency-Key", "one")
	b.do("POST", path, toAda, key).is(200)
	again := b.do("POST", path, toAda, key).is(200)
	if again.text("outcome") != "accepted" || len(again.lines()) != 0 || again.json["truncated"] != true ||
		strings.Contains(string(again.body), "hop.example") {
		t.Errorf("%s", again.body)
	}
	if n := len(far.Ledger()); n != 1 {
		t.Errorf("%d messages, want 1", n)
	}
}

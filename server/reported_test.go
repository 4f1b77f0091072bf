package server

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lemma"
	"lemma/address"
	"lemma/pgtest"
	"lemma/pgtest/shop"
	"lemma/sender/sendertest"
	"lemma/sender/wire"
	"lemma/signing"
	"lemma/workspaces"
)

const (
	twilioAccount = "AC0123456789abcdef0123456789abcdef"
	twilioToken   = "0123456789abcdef0123456789abcdef"
)

// reported is a process with providers of each channel, which report and are called.
type reported struct {
	*shop.Fixture
	*Server
	t         *testing.T
	token     string
	key       []byte
	providers map[string]string // the path of the webhook URL of each
	carrier   *sendertest.HTTPServer
	events    int
}

func startReported(t *testing.T) *reported {
	t.Helper()
	t.Parallel()
	carrier := sendertest.ServeHTTPS(t, true, func(sendertest.Received) sendertest.Reply {
		return sendertest.Reply{Status: 200, Body: `{"id":"m"}`}
	})
	b := &reported{Fixture: shop.New(pgtest.NewShop(t), shop.Local, nil), t: t, carrier: carrier, key: make([]byte, 32),
		providers: map[string]string{}}
	var err error
	b.Server, err = New(Deps{Pool: b.Fixture.Pool, Box: b.Box, Log: slog.New(slog.DiscardHandler)},
		Config{PublicURL: publicURL, Carriers: wire.Operator{AllowPrivate: true, Roots: carrier.Roots}})
	b.Must(err)
	_, b.token, err = b.Workspaces.CreateKey(t.Context(), b.Workspace,
		workspaces.NewKey{ID: lemma.NewID(), Name: "t", Scopes: []string{workspaces.Admin}})
	b.Must(err)
	secret := signing.Secret(b.key)
	for name, provider := range map[string]map[string]any{
		"email": {"kind": "http"}, "sms": {"kind": "http", "channel": "sms"}, "push": {"kind": "http", "channel": "push"},
		"smtp": {"kind": "smtp", "config": map[string]any{"host": "mail.example.com", "port": 587,
			"webhooks": map[string]any{"format": "generic"}},
			"secrets": map[string]any{"webhook_secret": secret}},
		"twilio": {"kind": "twilio", "config": map[string]any{"account_sid": twilioAccount, "from": "+4930999999"},
			"secrets": map[string]any{"auth_token": twilioToken}},
	} {
		if provider["name"] = name; provider["config"] == nil {
			provider["config"] = map[string]any{"url": carrier.URL + "/" + name}
			provider["secrets"] = map[string]any{"signing_secret": secret, "webhook_secret": secret}
		}
		var made struct{ ID string }
		callAPI(t, b.API, b.token, "POST", "/v1/providers", provider, &made)
		b.providers[name] = "/hooks/" + provider["kind"].(string) + "/" + made.ID
	}
	b.Must(b.StartWorkers(context.WithoutCancel(t.Context())))
	t.Cleanup(func() { _ = b.Stop() })
	return b
}

// report sends an event about an address, and returns the status and the body of the answer.
func (b *reported) report(provider, kind, address, notification string) (status int, answer string) {
	b.T.Helper()
	b.events++
	path, id := b.providers[provider], fmt.Sprint("event-", b.events)
	header := http.Header{}
	body, _ := json.Marshal(map[string]string{"type": kind, "address": address, "notification_id": notification})
	if provider == "twilio" {
		form := url.Values{"AccountSid": {twilioAccount}, "Body": {"STOP"}, "From": {address}, "MessageSid": {id}}
		mac := hmac.New(sha1.New, []byte(twilioToken))
		_, _ = fmt.Fprintf(mac, "%s%sAccountSid%sBodySTOPFrom%sMessageSid%s", publicURL, path, twilioAccount, address, id)
		body = []byte(form.Encode())
		header.Set("X-Twilio-Signature", base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	} else {
		signing.Set(header, [][]byte{b.key}, id, time.Now(), body)
	}
	r := httptest.NewRequest(http.MethodPost, path, bytes.NewReader(body))
	r.Header = header
	w := httptest.NewRecorder()
	b.API.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

// suppressed are the suppressions by address.
func (b *reported) suppressed() map[string]string {
	b.T.Helper()
	found := map[string]string{}
	rows, err := b.Fixture.Pool.Query(b.T.Context(), `select address, cause from suppressions where workspace_id = $1`, b.Workspace)
	b.Must(err)
	defer rows.Close()
	for rows.Next() {
		var address, cause string
		b.Must(rows.Scan(&address, &cause))
		found[address] = cause
	}
	return found
}

// send sends a marketing message, and returns its id and how it ended.
func (b *reported) send(channel lemma.Channel, address string) (id, outcome string) {
	b.T.Helper()
	content := map[lemma.Channel]map[string]any{
		lemma.Email: {"channel": "email", "subject": "Sale", "html": "<p>Sale</p>"},
		lemma.SMS:   {"channel": "sms", "text": "Sale"},
		lemma.Push:  {"channel": "push", "title": "Sale", "body": "Sale"},
	}[channel]
	provider := b.providers[string(channel)]
	var made struct{ Notification struct{ ID string } }
	var now struct{ Status, Reason string }
	request := map[string]any{"to": map[string]any{"address": address}, "content": content,
		"provider_id": provider[strings.LastIndexByte(provider, '/')+1:], "transactional": false}
	if channel == lemma.Email {
		request["from"] = map[string]any{"email": "news@shop.example"}
	}
	callAPI(b.t, b.API, b.token, "POST", "/v1/notifications", request, &made)
	b.Eventually("the message has ended", func() bool {
		callAPI(b.t, b.API, b.token, "GET", "/v1/notifications/"+made.Notification.ID, nil, &now)
		return now.Status == "sent" || now.Status == "skipped" || now.Status == "failed"
	})
	return made.Notification.ID, strings.TrimSpace(now.Status + " " + now.Reason)
}

// Whatever form a carrier reports an address in, it is suppressed, and a marketing message to
// it is not called.
func TestReportedAddressesStopMessages(t *testing.T) {
	b := startReported(t)
	token := strings.Repeat("f", 300)
	forms := []struct {
		provider, kind, address string
		channel                 lemma.Channel
		to                      string // as the audience has it
		cause                   string
	}{
		{"email", "unsubscribed", "P1@Shop.example", lemma.Email, "p1@shop.example", "unsubscribed"},
		{"email", "unsubscribed", "Anna <p2@shop.example>", lemma.Email, "p2@shop.example", "unsubscribed"},
		{"email", "bounced", "mailto:p3@shop.example", lemma.Email, "p3@shop.example", "hard_bounce"},
		{"email", "complained", "<p4@shop.example>", lemma.Email, "p4@shop.example", "complaint"},
		{"email", "unsubscribed", "p5@shop.example.", lemma.Email, "p5@shop.example", "unsubscribed"},
		{"email", "unsubscribed", "p6@BÜCHER.example", lemma.Email, "p6@xn--bcher-kva.example", "unsubscribed"},
		{"email", "unsubscribed", "p7@" + strings.Repeat("a.", 110) + "shop.example", lemma.Email,
			"p7@" + strings.Repeat("a.", 110) + "shop.example", "unsubscribed"},
		{"smtp", "bounced", `"Meier, Anna" <p8@shop.example.>`, lemma.Email, "p8@shop.example", "hard_bounce"},
		{"sms", "unsubscribed", "+4930123401", lemma.SMS, "+4930123401", "unsubscribed"},
		{"sms", "unsubscribed", "4930123402", lemma.SMS, "+4930123402", "unsubscribed"},
		{"sms", "bounced", "0049 30 123403", lemma.SMS, "+4930123403", "hard_bounce"},
		{"sms", "complained", "+49 (0)30/1234-04", lemma.SMS, "+4930123404", "complaint"},
		{"sms", "unsubscribed", "tel:+49-30-123405", lemma.SMS, "+4930123405", "unsubscribed"},
		{"sms", "unsubscribed", "whatsapp:+4930123406", lemma.SMS, "+4930123406", "unsubscribed"},
		{"twilio", "unsubscribed", "+4930123407", lemma.SMS, "+4930123407", "unsubscribed"},
		{"twilio", "unsubscribed", "whatsapp:+4930123408", lemma.SMS, "+4930123408", "unsubscribed"},
		{"twilio", "unsubscribed", "rcs:+4930123409", lemma.SMS, "+4930123409", "unsubscribed"},
		{"twilio", "unsubscribed", "whatsapp:+5491123456789", lemma.SMS, "+541123456789", "unsubscribed"},
		{"sms", "unsubscribed", "+54 11 2345-6780", lemma.SMS, "+5491123456780", "unsubscribed"},
		{"push", "bounced", " device-1 ", lemma.Push, "device-1", "hard_bounce"},
		{"push", "unsubscribed", token, lemma.Push, token, "unsubscribed"},
	}
	want := map[string]string{}
	for _, f := range forms {
		if status, answer := b.report(f.provider, f.kind, f.address, ""); status != http.StatusOK {
			t.Errorf("%s: %d %s", f.address, status, answer)
		}
		want[address.Parse(f.channel, f.to).Canonical] = f.cause
	}
	b.Eventually("the events are applied", func() bool { return b.Count(`select count(*) from event_queue`) == 0 })
	if diff := cmp.Diff(want, b.suppressed()); diff != "" {
		t.Error(diff)
	}
	for _, f := range forms {
		if _, outcome := b.send(f.channel, f.to); outcome != "skipped suppressed" {
			t.Errorf("%s is reported, and a message to %s is %s", f.address, f.to, outcome)
		}
	}
	if _, outcome := b.send(lemma.SMS, "+4930123499"); outcome != "sent" {
		t.Errorf("a message to a number that is not reported is %s", outcome)
	}
	if n := len(b.carrier.Received(func(sendertest.Received) bool { return true })); n != 1 {
		t.Errorf("%d messages are called", n)
	}
}

// The address of a notification that an event names is suppressed, and not the one that is
// reported with it, which need not be readable.
func TestTheAddressOfTheNotificationDecides(t *testing.T) {
	b := startReported(t)
	want := map[string]string{}
	for to, with := range map[string]string{"+4930123501": "+4930123502", "+4930123503": "030 123503", "+4930123504": "nobody"} {
		id, outcome := b.send(lemma.SMS, to)
		if outcome != "sent" {
			t.Fatalf("%s: %s", to, outcome)
		}
		if status, answer := b.report("sms", "unsubscribed", with, id); status != http.StatusOK {
			t.Errorf("%s: %d %s", with, status, answer)
		}
		want[to] = "unsubscribed"
	}
	b.Eventually("the events are applied", func() bool { return b.Count(`select count(*) from event_queue`) == 0 })
	if diff := cmp.Diff(want, b.suppressed()); diff != "" {
		t.Error(diff)
	}
}

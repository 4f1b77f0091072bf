package esp

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lemma"
	"lemma/events"
	"lemma/sender"
	"lemma/sender/report"
)

const testSecret = "0123456789abcdef-secret"

var (
	ntf      = lemma.FormatNotificationID(lemma.NewID(), lemma.NewID())
	now      = time.Date(2026, 11, 22, 18, 0, 0, 0, time.UTC)
	occurred = time.Date(2026, 11, 22, 17, 59, 30, 0, time.UTC)
	ecKey, _ = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
)

func receiver(t testing.TB, f Format) sender.Receiver {
	t.Helper()
	der, _ := x509.MarshalPKIXPublicKey(&ecKey.PublicKey)
	r, err := New(f, Keys{Secret: testSecret, PublicKey: base64.StdEncoding.EncodeToString(der)})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// signed is a request as the service makes it, with a signature of that time. The body
// of Mailgun is the event.
func signed(f Format, body string, at time.Time) sender.WebhookRequest {
	r := sender.WebhookRequest{Header: http.Header{}, Body: []byte(body), At: now}
	stamp := strconv.FormatInt(at.Unix(), 10)
	switch f {
	case Postmark:
		basic := &http.Request{Header: r.Header}
		basic.SetBasicAuth("lemma", testSecret)
	case Mailgun:
		mac := hmac.New(sha256.New, []byte(testSecret))
		mac.Write([]byte(stamp + "token"))
		r.Body = fmt.Appendf(nil, `{"signature":{"timestamp":%q,"token":"token","signature":%q},"event-data":%s}`,
			stamp, hex.EncodeToString(mac.Sum(nil)), body)
	case SendGrid:
		sum := sha256.Sum256([]byte(stamp + body))
		signature, _ := ecdsa.SignASN1(rand.Reader, ecKey, sum[:])
		r.Header.Set("X-Twilio-Email-Event-Webhook-Timestamp", stamp)
		r.Header.Set("X-Twilio-Email-Event-Webhook-Signature", base64.StdEncoding.EncodeToString(signature))
	}
	return r
}

// recipientOf is the address in a report of a type: of one that suppresses.
func recipientOf(kind events.Type) string {
	switch kind {
	case events.TypeBounced, events.TypeComplained, events.TypeUnsubscribed:
		return "user@example.test"
	}
	return ""
}

// The recipient of a message that another system has sent over the account is none of Lemma's,
// nor is that of a provider test.
func TestRecipientsOfOthers(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"", "x", lemma.FormatID(lemma.PrefixNotification, lemma.NewID())} {
		for f, body := range map[Format]string{
			Postmark: `{"RecordType":"SpamComplaint","MessageID":"m","Email":"user@example.test","Metadata":{"lemma-ntf":"` + id + `"}}`,
			Mailgun:  `{"event":"complained","recipient":"user@example.test","user-variables":{"lemma_ntf":"` + id + `"}}`,
			SendGrid: `[{"event":"spamreport","email":"user@example.test","lemma_ntf":"` + id + `"}]`,
		} {
			got, err := receiver(t, f).Receive(t.Context(), signed(f, body, now))
			if err != nil || len(got) != 1 || got[0].Type != events.TypeComplained || got[0].Address != "" {
				t.Errorf("%s, %q: %+v, %v", f, id, got, err)
			}
		}
	}
}

func TestPostmark(t *testing.T) {
	t.Parallel()
	bounce := func(kind string) string {
		return `{"RecordType":"Bounce","MessageStream":"outbound","ID":4323372036854775807,"Type":"` + kind + `","TypeCode":1,"Name":"x",
			"Tag":"Test","MessageID":"883953f4-6105-42a2-a16a-77a8eac79483","Metadata":{"lemma-ntf":"` + ntf + `","a":"b"},"ServerID":23,
			"Description":"The server was unable to deliver your message.","Details":"smtp;550 5.1.1 <user@example.test> unknown",
			"Email":"user@example.test","From":"news@shop.example","BouncedAt":"2026-11-22T12:59:30.0000000-05:00","DumpAvailable":true,
			"Inactive":true,"CanActivate":true,"Subject":"Test"}`
	}
	of := func(kind events.Type, reason string) []events.Report {
		return []events.Report{{ID: "Bounce/4323372036854775807", Notification: ntf, CarrierID: "883953f4-6105-42a2-a16a-77a8eac79483",
			Address: recipientOf(kind), Type: kind, Reason: reason, Code: 550, Detail: "smtp;550 5.1.1 <[address]> unknown",
			OccurredAt: occurred}}
	}
	plain := func(id string, kind events.Type) []events.Report {
		return []events.Report{{ID: id + "/m/1795370370000", Notification: ntf, CarrierID: "m", Address: recipientOf(kind), Type: kind,
			OccurredAt: occurred}}
	}
	rest := `"MessageID":"m","Metadata":{"Lemma-Ntf":"` + ntf + `"},"Recipient":"user@example.test",`
	for _, c := range []struct {
		name, body string
		want       []events.Report
	}{
		{"a hard bounce", bounce("HardBounce"), of(events.TypeBounced, "hard_bounce")},
		{"a bad address", bounce("BadEmailAddress"), of(events.TypeBounced, "bad_email_address")},
		{"a soft bounce", bounce("SoftBounce"), of(events.TypeSoftBounced, "soft_bounce")},
		{"a transient failure", bounce("Transient"), of(events.TypeDelayed, "transient")},
		{"a mail to unsubscribe", bounce("Unsubscribe"), of(events.TypeUnsubscribed, "unsubscribe")},
		{"a complaint as a bounce", bounce("SpamComplaint"), of(events.TypeComplained, "spam_complaint")},
		{"a refusal of the content", bounce("Blocked"), of(events.TypeUndelivered, "blocked")},
		{"a new type", bounce("Other"), of(events.TypeUndelivered, "other")},
		{"an automatic answer", bounce("AutoResponder"), nil},
		{"a delivery", `{"RecordType":"Delivery",` + rest + `"DeliveredAt":"2026-11-22T17:59:30Z","Details":""}`,
			plain("Delivery", events.TypeDelivered)},
		{"an open", `{"RecordType":"Open","FirstOpen":true,"Client":{"Name":"c"},` + rest + `"ReceivedAt":"2026-11-22T17:59:30Z"}`,
			plain("Open", events.TypeOpened)},
		{"a click", `{"RecordType":"Click","OriginalLink":"https://shop.example",` + rest + `"ReceivedAt":"2026-11-22T17:59:30Z"}`,
			plain("Click", events.TypeClicked)},
		{"an unsubscription", `{"RecordType":"SubscriptionChange","SuppressSending":true,"SuppressionReason":"ManualSuppression",
			"Origin":"Recipient",` + rest + `"ChangedAt":"2026-11-22T17:59:30Z"}`, plain("SubscriptionChange", events.TypeUnsubscribed)},
		{"a suppression by a bounce", `{"RecordType":"SubscriptionChange","SuppressSending":true,"SuppressionReason":"HardBounce",
			"Origin":"Recipient",` + rest + `"ChangedAt":"2026-11-22T17:59:30Z"}`, nil},
		{"a subscription", `{"RecordType":"SubscriptionChange","SuppressSending":false,` + rest + `"ChangedAt":"2026-11-22T17:59:30Z"}`, nil},
		{"an inbound mail", `{"From":"a@example.test"}`, nil},
	} {
		got, err := receiver(t, Postmark).Receive(t.Context(), signed(Postmark, c.body, now))
		if diff := cmp.Diff(c.want, got); diff != "" || err != nil {
			t.Errorf("%s: %v\n%s", c.name, err, diff)
		}
	}
	byToken := sender.WebhookRequest{Header: http.Header{"X-Webhook-Token": {testSecret}}, Body: []byte(bounce("HardBounce")), At: now}
	if got, err := receiver(t, Postmark).Receive(t.Context(), byToken); len(got) != 1 || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestMailgun(t *testing.T) {
	t.Parallel()
	variables := `"user-variables":{"lemma_ntf":"` + ntf + `"}`
	event := func(name, more string) string {
		return `{"id":"DACSsAdVSeGpLid7TN03WA","event":"` + name + `","timestamp":1795370370.0,"log-level":"info","recipient":"user@example.test",
			"message":{"headers":{"to":"user@example.test","message-id":"20261122@shop.example","from":"news@shop.example"},"size":111},
			` + more + variables + `}`
	}
	failed := func(severity, reason, status string) string {
		return event("failed", `"severity":"`+severity+`","reason":"`+reason+`","delivery-status":{"attempt-no":1,"code":550,`+status+
			`"message":"5.1.1 user@example.test unknown","description":"Not delivering"},`)
	}
	of := func(kind events.Type, reason string) []events.Report {
		return []events.Report{{ID: "DACSsAdVSeGpLid7TN03WA/2026-11-22", Notification: ntf, CarrierID: "20261122@shop.example", Type: kind,
			Address: recipientOf(kind), Reason: reason, Code: 550, Detail: "5.1.1 [address] unknown", OccurredAt: occurred}}
	}
	plain := func(kind events.Type) []events.Report {
		r := of(kind, "")
		r[0].Code, r[0].Detail = 0, ""
		return r
	}
	for _, c := range []struct {
		name, body string
		want       []events.Report
	}{
		{"accepted", event("accepted", ""), plain(events.TypeAccepted)},
		{"delivered", event("delivered", `"delivery-status":{"code":"","message":null},`), plain(events.TypeDelivered)},
		{"rejected", event("rejected", `"reject":{"reason":"Sandbox"},`), plain(events.TypeUndelivered)},
		{"opened", event("opened", ""), plain(events.TypeOpened)},
		{"clicked", event("clicked", ""), plain(events.TypeClicked)},
		{"complained", event("complained", ""), plain(events.TypeComplained)},
		{"unsubscribed", event("unsubscribed", ""), plain(events.TypeUnsubscribed)},
		{"a temporary failure", failed("temporary", "generic", ""), of(events.TypeDelayed, "generic")},
		{"a hard bounce", failed("permanent", "bounce", `"bounce-type":"hard",`), of(events.TypeBounced, "bounce")},
		{"a soft bounce", failed("permanent", "bounce", `"bounce-type":"soft",`), of(events.TypeSoftBounced, "bounce")},
		{"an earlier bounce", failed("permanent", "suppress-bounce", ""), of(events.TypeBounced, "suppress_bounce")},
		{"an earlier complaint", failed("permanent", "suppress-complaint", ""), of(events.TypeComplained, "suppress_complaint")},
		{"an earlier unsubscription", failed("permanent", "suppress-unsubscribe", ""), of(events.TypeUnsubscribed, "suppress_unsubscribe")},
		{"too many tries", failed("permanent", "old", ""), of(events.TypeSoftBounced, "old")},
		{"a code of the address", failed("permanent", "generic", ""), of(events.TypeBounced, "generic")},
		{"a code of policy", failed("permanent", "espblock", `"enhanced-code":"5.7.1",`), of(events.TypeUndelivered, "espblock")},
		{"another event", event("stored", ""), nil},
	} {
		got, err := receiver(t, Mailgun).Receive(t.Context(), signed(Mailgun, c.body, now))
		if diff := cmp.Diff(c.want, got); diff != "" || err != nil {
			t.Errorf("%s: %v\n%s", c.name, err, diff)
		}
	}
	byMessageID := strings.Replace(strings.Replace(event("opened", ""), variables, `"user-variables":[]`, 1), "20261122@", ntf+"@", 1)
	got, err := receiver(t, Mailgun).Receive(t.Context(), signed(Mailgun, byMessageID, now))
	if err != nil || len(got) != 1 || got[0].Notification != ntf {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestSendGrid(t *testing.T) {
	t.Parallel()
	event := func(name, more string) string {
		return `{"email":"user@example.test","timestamp":1795370370,"smtp-id":"<14c5d75ce93@ismtpd>","event":"` + name + `",` + more +
			`"category":["a"],"sg_event_id":"ZGVsaXZlcmVk","sg_message_id":"14c5d75ce93.filter0001","lemma_ntf":"` + ntf + `"}`
	}
	bounce := func(kind, class string) string {
		return event("bounce", `"reason":"550 5.1.1 user@example.test unknown","status":"5.0.0","type":"`+kind+
			`","bounce_classification":"`+class+`",`)
	}
	drop := func(reason string) string { return event("dropped", `"reason":"`+reason+`","status":"5.0.0",`) }
	of := func(kind events.Type, reason, detail string, code int) events.Report {
		return events.Report{ID: "ZGVsaXZlcmVk", Notification: ntf, CarrierID: "14c5d75ce93.filter0001", Type: kind, Reason: reason,
			Address: recipientOf(kind), Code: code, Detail: detail, OccurredAt: occurred}
	}
	bounced := func(kind events.Type, reason string) []events.Report {
		return []events.Report{of(kind, reason, "550 5.1.1 [address] unknown", 550)}
	}
	plain := func(kind events.Type) []events.Report { return []events.Report{of(kind, "", "", 0)} }
	for _, c := range []struct {
		name, body string
		want       []events.Report
	}{
		{"processed", event("processed", ""), plain(events.TypeAccepted)},
		{"delivered", event("delivered", `"response":"250 OK",`), []events.Report{of(events.TypeDelivered, "", "250 OK", 250)}},
		{"deferred", event("deferred", `"response":"400 try again later","attempt":"5",`),
			[]events.Report{of(events.TypeDelayed, "", "400 try again later", 400)}},
		{"an invalid address", bounce("bounce", "Invalid Address"), bounced(events.TypeBounced, "invalid_address")},
		{"an unclassified bounce", bounce("bounce", "Unclassified"), bounced(events.TypeBounced, "unclassified")},
		{"a mailbox that does not exist", bounce("bounce", "Mailbox Unavailable"), bounced(events.TypeBounced, "mailbox_unavailable")},
		{"a full mailbox", bounce("blocked", "Mailbox Unavailable"), bounced(events.TypeSoftBounced, "mailbox_unavailable")},
		{"a refusal of the content", bounce("bounce", "Content"), bounced(events.TypeUndelivered, "content")},
		{"a block", bounce("blocked", "Unclassified"), bounced(events.TypeUndelivered, "unclassified")},
		{"dropped after a bounce", drop("Bounced Address"), []events.Report{of(events.TypeBounced, "bounced_address", "Bounced Address", 0)}},
		{"dropped after a complaint", drop("Spam Reporting Address"),
			[]events.Report{of(events.TypeComplained, "spam_reporting_address", "Spam Reporting Address", 0)}},
		{"dropped after an unsubscription", drop("Unsubscribed Address"),
			[]events.Report{of(events.TypeUnsubscribed, "unsubscribed_address", "Unsubscribed Address", 0)}},
		{"dropped for its content", drop("Spam Content"), []events.Report{of(events.TypeUndelivered, "spam_content", "Spam Content", 0)}},
		{"open", event("open", `"sg_machine_open":false,`), plain(events.TypeOpened)},
		{"click", event("click", `"url":"https://shop.example",`), plain(events.TypeClicked)},
		{"spamreport", event("spamreport", ""), plain(events.TypeComplained)},
		{"unsubscribe", event("unsubscribe", ""), plain(events.TypeUnsubscribed)},
		{"group_unsubscribe", event("group_unsubscribe", `"asm_group_id":10,`), plain(events.TypeUnsubscribed)},
		{"group_resubscribe", event("group_resubscribe", ""), nil},
	} {
		got, err := receiver(t, SendGrid).Receive(t.Context(), signed(SendGrid, "["+c.body+"]", now))
		if diff := cmp.Diff(c.want, got); diff != "" || err != nil {
			t.Errorf("%s: %v\n%s", c.name, err, diff)
		}
	}
	several := `[{"event":"delivered","sg_event_id":"1","smtp-id":"<` + ntf + `@shop.example>"},` +
		`{"event":"open","sg_event_id":"2"},{"event":"x"}]`
	got, err := receiver(t, SendGrid).Receive(t.Context(), signed(SendGrid, several, now))
	if err != nil || len(got) != 2 || got[0].Notification != ntf || got[1].Notification != "" || got[1].OccurredAt != now {
		t.Errorf("%+v, %v", got, err)
	}
}

// What the service has not made, or not lately, is refused.
func TestRefusals(t *testing.T) {
	t.Parallel()
	bodies := map[Format]string{
		Postmark: `{"RecordType":"Delivery","MessageID":"m"}`, Mailgun: `{"event":"delivered"}`, SendGrid: `[{"event":"delivered"}]`,
	}
	for f, body := range bodies {
		change := func(how func(r *sender.WebhookRequest)) sender.WebhookRequest {
			r := signed(f, body, now)
			how(&r)
			return r
		}
		for _, c := range []struct {
			name string
			r    sender.WebhookRequest
			want error
		}{
			{"valid", signed(f, body, now), nil},
			{"a day late", signed(f, body, now.Add(-25*time.Hour)), nil},
			{"empty", change(func(r *sender.WebhookRequest) { r.Body = nil }), sender.ErrUnreadable},
			{"oversized", change(func(r *sender.WebhookRequest) { r.Body = make([]byte, sender.MostWebhook+1) }), sender.ErrUnreadable},
			{"old", signed(f, body, now.Add(-73*time.Hour)), sender.ErrReplayed},
			{"from the future", signed(f, body, now.Add(6*time.Minute)), sender.ErrReplayed},
			{"without a signature", sender.WebhookRequest{Header: http.Header{}, Body: []byte(body), At: now}, sender.ErrForged},
			{"truncated", change(func(r *sender.WebhookRequest) { r.Body = r.Body[:len(r.Body)-1] }), sender.ErrUnreadable},
		} {
			want := c.want
			if f == Postmark && want == sender.ErrReplayed {
				want = nil // nothing in a request has the time when it was made
			}
			if f == SendGrid && c.name == "truncated" {
				want = sender.ErrForged // the body is signed
			}
			if _, err := receiver(t, f).Receive(t.Context(), c.r); !errors.Is(err, want) {
				t.Errorf("%s, %s: %v, want %v", f, c.name, err, want)
			}
		}
	}
	forged := map[string]sender.WebhookRequest{}
	p := signed(Postmark, bodies[Postmark], now)
	p.Header = http.Header{"X-Webhook-Token": {testSecret[1:]}}
	forged["postmark, another token"] = p
	m := signed(Mailgun, bodies[Mailgun], now)
	m.Body = []byte(strings.Replace(string(m.Body), `"token":"token"`, `"token":"other"`, 1))
	forged["mailgun, another token"] = m
	s := signed(SendGrid, bodies[SendGrid], now)
	s.Body = []byte(`[{"event":"bounce"}]`)
	forged["sendgrid, another body"] = s
	s2 := signed(SendGrid, bodies[SendGrid], now.Add(-100*time.Hour))
	s2.Header.Set("X-Twilio-Email-Event-Webhook-Timestamp", strconv.FormatInt(now.Unix(), 10))
	forged["sendgrid, another time"] = s2
	for name, r := range forged {
		f := Format(strings.Split(name, ",")[0])
		if _, err := receiver(t, f).Receive(t.Context(), r); !errors.Is(err, sender.ErrForged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	many := "[" + strings.Repeat(`{},`, report.MostEvents) + "{}]"
	if _, err := receiver(t, SendGrid).Receive(t.Context(), signed(SendGrid, many, now)); !errors.Is(err, sender.ErrUnreadable) {
		t.Errorf("many events: %v", err)
	}
}

// A body with too many events is refused before they are in memory. The test is not parallel,
// since it counts what is allocated.
func TestTooManyEventsAreNotInMemory(t *testing.T) { //nolint:paralleltest
	many := signed(SendGrid, "["+strings.Repeat(`{},`, 300_000)+"{}]", now)
	r := receiver(t, SendGrid)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := r.Receive(t.Context(), many)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; !errors.Is(err, sender.ErrUnreadable) || n > 1<<20 {
		t.Errorf("%v, with %d bytes", err, n)
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		format Format
		keys   Keys
		want   error
	}{
		{Postmark, Keys{}, ErrSecret}, {Mailgun, Keys{Secret: "short"}, ErrSecret}, {SendGrid, Keys{Secret: testSecret}, ErrPublicKey},
		{SendGrid, Keys{PublicKey: "AAAA"}, ErrPublicKey}, {SendGrid, Keys{PublicKey: "%"}, ErrPublicKey},
	} {
		if _, err := New(c.format, c.keys); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// SendGrid signs with P-256. Keys of larger curves make a stranger's request cost milliseconds.
func TestCurvesOfKeys(t *testing.T) {
	t.Parallel()
	for curve, want := range map[elliptic.Curve]error{elliptic.P256(): nil, elliptic.P224(): ErrPublicKey, elliptic.P384(): ErrPublicKey,
		elliptic.P521(): ErrPublicKey} {
		key, err := ecdsa.GenerateKey(curve, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := New(SendGrid, Keys{PublicKey: base64.StdEncoding.EncodeToString(der)}); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", curve.Params().Name, err, want)
		}
	}
}

func FuzzReceive(f *testing.F) {
	f.Add([]byte(`{"RecordType":"Bounce","ID":-1,"BouncedAt":"0001-01-01T00:00:00Z","Metadata":{"lemma-ntf":""}}`))
	f.Add([]byte(`{"event":"failed","timestamp":"1e10","delivery-status":{"code":[],"enhanced-code":"4"},"user-variables":[1]}`))
	f.Add([]byte(`[{"event":"bounce","timestamp":NaN}]`))
	f.Add([]byte(`[{"event":"dropped","timestamp":-1,"sg_event_id":"` + strings.Repeat("x", 300) + `"},null]`))
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, format := range []Format{Postmark, Mailgun, SendGrid} {
			got, err := receiver(t, format).Receive(t.Context(), signed(format, string(body), now))
			if err != nil && !errors.Is(err, sender.ErrUnreadable) && !errors.Is(err, sender.ErrForged) {
				t.Errorf("%s: %v", format, err)
			}
			for _, r := range got {
				if r.Type == "" || len(r.Detail) > 200 || r.OccurredAt.IsZero() {
					t.Errorf("%+v", r)
				}
			}
		}
	})
}

package twilio

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lemma"
	"lemma/events"
	"lemma/sender"
	"lemma/sender/wire"
)

const (
	hookAccount = "AC0123456789abcdef0123456789abcdef"
	hookToken   = "0123456789abcdef0123456789abcdef"
	hookSID     = "SM0123456789abcdef0123456789abcdef"
	hookURL     = "https://lemma.example.com/hooks/twilio/prv_1"
)

var hookTime = time.Date(2026, 11, 22, 18, 0, 0, 0, time.UTC)

// request is a request as Twilio makes it.
func request(called string, form url.Values) sender.WebhookRequest {
	return sender.WebhookRequest{URLs: []string{called}, Body: []byte(form.Encode()), At: hookTime, Header: http.Header{
		"Content-Type":       {"application/x-www-form-urlencoded"},
		"X-Twilio-Signature": {base64.StdEncoding.EncodeToString(signature(hookToken, called, form))},
	}}
}

// status is a status callback.
func status(status, code string) url.Values {
	form := url.Values{"AccountSid": {hookAccount}, "MessageSid": {hookSID}, "SmsSid": {hookSID}, "SmsStatus": {status},
		"MessageStatus": {status}, "To": {"+491701234567"}, "From": {"+15017122661"}, "ApiVersion": {"2010-04-01"}}
	if code != "" {
		form.Set("ErrorCode", code)
		form.Set("ErrorMessage", "the number +491701234567 failed")
	}
	return form
}

// The example of Twilio's documentation.
func TestSignature(t *testing.T) {
	t.Parallel()
	form := url.Values{"CallSid": {"CA1234567890ABCDE"}, "Caller": {"+14158675309"}, "Digits": {"1234"}, "From": {"+14158675309"},
		"To": {"+18005551212"}}
	got := base64.StdEncoding.EncodeToString(signature("12345", "https://mycompany.com/myapp.php?foo=1&bar=2", form))
	if got != "RSOYDt4T1cUTdK1PDd93/VVr8B8=" {
		t.Error(got)
	}
}

func TestStatusCallbacks(t *testing.T) {
	t.Parallel()
	ntf := lemma.FormatNotificationID(lemma.NewID(), lemma.NewID())
	r := receiver{hookAccount, hookToken}
	for _, c := range []struct {
		status, code string
		want         events.Type
	}{
		{"accepted", "", events.TypeAccepted}, {"scheduled", "", events.TypeAccepted}, {"queued", "", events.TypeAccepted},
		{"sending", "", events.TypeAccepted}, {"sent", "", events.TypeAccepted}, {"delivered", "", events.TypeDelivered},
		{"read", "", events.TypeOpened}, {"canceled", "", events.TypeUndelivered}, {"failed", "", events.TypeUndelivered},
		{"undelivered", "30003", events.TypeSoftBounced}, {"undelivered", "30004", events.TypeUndelivered},
		{"undelivered", "30005", events.TypeBounced}, {"undelivered", "30006", events.TypeSoftBounced},
		{"undelivered", "30007", events.TypeUndelivered}, {"undelivered", "30008", events.TypeUndelivered},
		{"failed", "21211", events.TypeBounced}, {"failed", "21614", events.TypeBounced},
	} {
		want := events.Report{ID: hookSID + "/" + c.status, Notification: ntf, Attempt: 2, CarrierID: hookSID, Type: c.want,
			Reason: c.status, OccurredAt: hookTime}
		if c.code != "" {
			want.Reason, want.Detail = "twilio_"+c.code, "the number [address] failed"
		}
		if c.want == events.TypeBounced {
			want.Address = "+491701234567"
		}
		got, err := r.Receive(t.Context(), request(hookURL+"?n="+ntf+"&a=2", status(c.status, c.code)))
		if diff := cmp.Diff([]events.Report{want}, got); diff != "" || err != nil {
			t.Errorf("%s %s: %v\n%s", c.status, c.code, err, diff)
		}
	}
	if got, err := r.Receive(t.Context(), request(hookURL, status("partially_delivered", ""))); err != nil || got != nil {
		t.Errorf("%+v, %v", got, err)
	}
	got, err := r.Receive(t.Context(), request(hookURL+"?n="+ntf+"&a=1", status("failed", "21610")))
	if err != nil || len(got) != 2 || got[0].Type != events.TypeUndelivered || got[1].Type != events.TypeUnsubscribed ||
		got[0].ID == got[1].ID || got[1].Notification != ntf || got[0].Address != "" || got[1].Address != "+491701234567" {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestMessagesOfRecipients(t *testing.T) {
	t.Parallel()
	r := receiver{hookAccount, hookToken}
	for _, c := range []struct {
		name, body, optOut, from string
		stops                    bool
	}{
		{"STOP by Advanced Opt-Out", "stop it", "STOP", "+491701234567", true},
		{"STOP without it", " Stop ", "", "+491701234567", true},
		{"UNSUBSCRIBE without it", "UNSUBSCRIBE", "", "+491701234567", true},
		{"a sentence with stop", "please stop", "", "+491701234567", false},
		{"STOP that is no keyword of the service", "STOP", "HELP", "+491701234567", false},
		{"START", "START", "START", "+491701234567", false},
		{"another channel", "STOP", "STOP", "whatsapp:+491701234567", true},
		{"a short code, which is no number that is sent to", "STOP", "STOP", "12345", true},
	} {
		form := url.Values{"AccountSid": {hookAccount}, "MessageSid": {hookSID}, "SmsStatus": {"received"}, "Body": {c.body}, "From": {c.from},
			"To": {"+15017122661"}}
		if c.optOut != "" {
			form.Set("OptOutType", c.optOut)
		}
		var want []events.Report
		if c.stops {
			want = []events.Report{{ID: hookSID + "/stop", CarrierID: hookSID, Address: c.from, Type: events.TypeUnsubscribed, Reason: "stop",
				OccurredAt: hookTime}}
		}
		got, err := r.Receive(t.Context(), request(hookURL, form))
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v\n%s", c.name, err, diff)
		}
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	r := receiver{hookAccount, hookToken}
	valid := func() sender.WebhookRequest { return request(hookURL+"?n=a&a=1", status("sent", "")) }
	change := func(how func(*sender.WebhookRequest)) sender.WebhookRequest {
		w := valid()
		w.Header = maps.Clone(w.Header)
		how(&w)
		return w
	}
	foreign := status("sent", "")
	foreign.Set("AccountSid", strings.Replace(hookAccount, "AC0", "AC1", 1))
	nameless := status("sent", "")
	nameless.Del("MessageSid")
	for _, c := range []struct {
		name string
		w    sender.WebhookRequest
		want error
	}{
		{"valid", valid(), nil},
		{"signed for the public URL before", change(func(w *sender.WebhookRequest) {
			w.URLs = append([]string{strings.Replace(w.URLs[0], "lemma", "other", 1)}, w.URLs...)
		}), nil},
		{"signed with the port", change(func(w *sender.WebhookRequest) {
			w.URLs[0] = strings.Replace(w.URLs[0], "example.com", "example.com:443", 1)
		}), nil},
		{"signed for another notification", change(func(w *sender.WebhookRequest) { w.URLs[0] = strings.Replace(w.URLs[0], "n=a", "n=b", 1) }),
			sender.ErrForged},
		{"signed for another host", change(func(w *sender.WebhookRequest) { w.URLs[0] = strings.Replace(w.URLs[0], "lemma", "other", 1) }),
			sender.ErrForged},
		{"another status", change(func(w *sender.WebhookRequest) { w.Body = []byte(status("failed", "").Encode()) }), sender.ErrForged},
		{"a further parameter", change(func(w *sender.WebhookRequest) { w.Body = append(w.Body, "&x=1"...) }), sender.ErrForged},
		{"truncated", change(func(w *sender.WebhookRequest) { w.Body = w.Body[:20] }), sender.ErrForged},
		{"without a signature", change(func(w *sender.WebhookRequest) { w.Header.Del("X-Twilio-Signature") }), sender.ErrForged},
		{"an empty body", change(func(w *sender.WebhookRequest) { w.Body = nil }), sender.ErrUnreadable},
		{"an oversized body", change(func(w *sender.WebhookRequest) { w.Body = make([]byte, sender.MostWebhook+1) }), sender.ErrUnreadable},
		{"many parameters", change(func(w *sender.WebhookRequest) {
			w.Body = nil
			for i := range 600 {
				w.Body = append(w.Body, '&', byte('a'+i%26), byte('a'+i/26), '=')
			}
		}), sender.ErrUnreadable},
		{"a broken form", change(func(w *sender.WebhookRequest) { w.Body = []byte("%") }), sender.ErrUnreadable},
		{"another account", request(hookURL, foreign), sender.ErrForeign},
		{"no message", request(hookURL, nameless), sender.ErrUnreadable},
	} {
		if _, err := r.Receive(t.Context(), c.w); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	if _, err := (receiver{hookAccount, "another token"}).Receive(t.Context(), valid()); !errors.Is(err, sender.ErrForged) {
		t.Errorf("another token: %v", err)
	}
}

// A body of JSON is signed by its hash in the URL. No request of that form is about a
// message.
func TestJSON(t *testing.T) {
	t.Parallel()
	r := receiver{hookAccount, hookToken}
	body := []byte(`{"a":1}`)
	sum := sha256.Sum256(body)
	called := hookURL + "?bodySHA256=" + hex.EncodeToString(sum[:])
	w := sender.WebhookRequest{URLs: []string{called}, Body: body, At: hookTime, Header: http.Header{
		"X-Twilio-Signature": {base64.StdEncoding.EncodeToString(signature(hookToken, called, nil))}}}
	if _, err := r.Receive(t.Context(), w); !errors.Is(err, sender.ErrUnreadable) {
		t.Error(err)
	}
	w.Body = []byte(status("failed", "21610").Encode())
	if _, err := r.Receive(t.Context(), w); !errors.Is(err, sender.ErrForged) {
		t.Errorf("another body: %v", err)
	}
}

func TestReceiverOfAccount(t *testing.T) {
	t.Parallel()
	config := []byte(`{"account_sid":"` + hookAccount + `","from":"+15017122661"}`)
	key := []byte(`{"api_key_sid":"SK0123456789abcdef0123456789abcdef","api_key_secret":"0123456789abcdef"}`)
	token := []byte(`{"auth_token":"` + hookToken + `"}`)
	of := Kind(wire.Operator{PublicURL: func() string { return "https://lemma.example.com" }}).Receiver
	if _, err := Kind(wire.Operator{}).Receiver(sender.Account{Config: config, Secrets: token}); err != nil {
		t.Errorf("without a public URL: %v", err)
	}
	if _, err := of(sender.Account{Config: config, Secrets: key}); !errors.Is(err, sender.ErrNoReceiver) {
		t.Errorf("without an auth token: %v", err)
	}
	if _, err := of(sender.Account{Config: config, Secrets: token}); err != nil {
		t.Error(err)
	}
}

func FuzzReceive(f *testing.F) {
	f.Add("n=ntf_1&a=1", status("undelivered", "30003").Encode())
	f.Add("", "AccountSid="+hookAccount+"&MessageSid=SM1&Body=STOP&From=%2B491701234567")
	f.Add("bodySHA256=00", "{}")
	f.Add("%", ";;&=&%zz")
	r := receiver{hookAccount, hookToken}
	f.Fuzz(func(t *testing.T, query, body string) {
		form, _ := url.ParseQuery(body)
		w := request(hookURL+"?"+query, form)
		w.Body = []byte(body)
		got, err := r.Receive(t.Context(), w)
		if err != nil && !errors.Is(err, sender.ErrUnreadable) && !errors.Is(err, sender.ErrForged) && !errors.Is(err, sender.ErrForeign) {
			t.Error(err)
		}
		for _, one := range got {
			if one.ID == "" || one.CarrierID == "" || one.Notification != "" && one.Address != "" {
				t.Errorf("%+v", one)
			}
		}
	})
}

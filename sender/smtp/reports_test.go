package smtp

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/emersion/go-msgauth/dkim"
	"github.com/google/go-cmp/cmp"

	"lemma"
	"lemma/events"
	"lemma/sender"
	"lemma/sender/esp"
	"lemma/sender/mime"
)

// sendgridKey is a verification key in the form of SendGrid.
const sendgridKey = "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEy3Mwb20yMlrozKSGJULOP2jRBLAjmEiBmu" +
	"NzvJEWFT0t5SijL05YKI3PO6wEnBQGCSzzCMjOZ4I53bQDwU/9AA=="

func TestCheckOfReports(t *testing.T) {
	t.Parallel()
	const secret = `{"webhook_secret":"0123456789abcdef"}`
	for _, c := range []struct {
		name, config, secrets string
		want                  []string
	}{
		{"postmark", `"webhooks":{"format":"postmark"}`, secret, nil},
		{"mailgun", `"webhooks":{"format":"mailgun"}`, secret, nil},
		{"sendgrid", `"webhooks":{"format":"sendgrid","public_key":"` + sendgridKey + `"}`, ``, nil},
		{"mails", `"webhooks":{"format":"dsn"},"return_path":"bounces@shop.example"`, secret, nil},
		{"a return path alone", `"return_path":"bounces@shop.example"`, ``, nil},
		{"generic", `"webhooks":{"format":"generic"}`, `{"webhook_secret":"whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="}`, nil},
		{"generic with another secret", `"webhooks":{"format":"generic"}`, secret, []string{"/secrets/webhook_secret invalid_secret"}},
		{"no webhooks", `"webhooks":null`, ``, nil},
		{"postmark without a secret", `"webhooks":{"format":"postmark"}`, ``, []string{"/secrets/webhook_secret invalid_secret"}},
		{"a short secret", `"webhooks":{"format":"dsn"}`, `{"webhook_secret":"short"}`, []string{"/secrets/webhook_secret invalid_secret"}},
		{"sendgrid without a key", `"webhooks":{"format":"sendgrid"}`, secret, []string{"/config/webhooks/public_key invalid_key"}},
		{"another format", `"webhooks":{"format":"other"}`, secret, []string{"/config/webhooks/format invalid_choice"}},
		{"an unknown member", `"webhooks":{"format":"dsn","x":1}`, secret, []string{"/config/webhooks/x unknown_field"}},
		{"a secret without webhooks", `"tls":"starttls"`, secret, []string{"/config/webhooks required"}},
		{"a return path with a name", `"return_path":"Bounces <bounces@shop.example>"`, ``, []string{"/config/return_path address"}},
		{"a return path that ends the command", `"return_path":"a@shop.example>"`, ``, []string{"/config/return_path address"}},
	} {
		err := Check(json.RawMessage(`{"host":"mail.example.test","port":587,`+c.config+`}`), json.RawMessage(c.secrets), Options{})
		if diff := cmp.Diff(c.want, faults(t, err)); diff != "" {
			t.Errorf("%s: (-want +got):\n%s", c.name, diff)
		}
	}
}

// The header of a service and the proof in the Message-ID differ between notifications
// only, and DKIM does not cover the header.
func TestHeadersForReports(t *testing.T) {
	t.Parallel()
	s := mustSigner(t, testKeyRSA)
	for format, want := range map[esp.Format]string{
		esp.Postmark: "X-PM-Metadata-lemma-ntf: ntf_1\r\n",
		esp.Mailgun:  `X-Mailgun-Variables: {"lemma_ntf":"ntf_1"}` + "\r\n",
		esp.SendGrid: `X-SMTPAPI: {"unique_args":{"lemma_ntf":"ntf_1"}}` + "\r\n",
	} {
		var w mime.Writer
		var d draft
		m := message(1)
		own := &settings{dkim: s, own: mime.Own{Lines: format.AppendHeader, Key: []byte("0123456789abcdef")}}
		for attempt := range 2 {
			m.Attempt = attempt + 1
			if err := d.write(&w, &m, own); err != nil {
				t.Fatal(err)
			}
			text := strings.TrimSuffix(string(d.mail), ".\r\n")
			if strings.Count(text, want) != 1 || !strings.Contains(text, "\r\nMessage-ID: <ntf_1.2cze4y9rn86r6vz9@shop.example>\r\n") {
				t.Errorf("%s:\n%s", format, text)
			}
			options := &dkim.VerifyOptions{LookupTXT: func(string) ([]string, error) { return []string{record(t, s)}, nil }}
			if err := verify(strings.Replace(text, want, "", 1), options); err != nil {
				t.Errorf("%s: without the header: %v", format, err)
			}
		}
	}
}

// The envelope has the return path, and the mail that comes back to it is read.
func TestReturnPath(t *testing.T) {
	t.Parallel()
	s := serve(t, &server{offers: "PIPELINING"})
	config := `"return_path":"bounces@shop.example","webhooks":{"format":"dsn"}`
	c := carrierTo(t, s, config)
	m := message(1)
	m.Notification = lemma.FormatNotificationID(lemma.NewID(), lemma.NewID())
	if r := c.Send(t.Context(), []sender.Message{m})[0]; r.Outcome != sender.Accepted {
		t.Fatalf("%+v", r)
	}
	s.mu.Lock()
	mail := slices.ContainsFunc(s.commands, func(c string) bool { return strings.HasPrefix(c, "MAIL FROM:<bounces@shop.example>") })
	s.mu.Unlock()
	if !mail {
		t.Errorf("%q", s.commands)
	}
	bounce := "Content-Type: multipart/report; report-type=delivery-status; boundary=b\r\n\r\n" +
		"--b\r\nContent-Type: message/delivery-status\r\n\r\n" +
		"Reporting-MTA: dns; mx.example.test\r\n\r\nFinal-Recipient: rfc822; user1@example.test\r\nAction: failed\r\nStatus: 5.1.1\r\n\r\n" +
		"--b\r\nContent-Type: message/rfc822\r\n\r\n" + s.kept()[0] + "\r\n--b--\r\n"
	got, err := c.receiver.Receive(t.Context(), sender.WebhookRequest{Body: []byte(bounce), At: time.Now()})
	if err != nil || len(got) != 1 || got[0].Notification != m.Notification || got[0].Type != events.TypeBounced {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestReceiver(t *testing.T) {
	t.Parallel()
	make := Kind(Options{}).Receiver
	config := []byte(`{"host":"a.test","port":25}`)
	if _, err := make(sender.Account{Config: config}); !errors.Is(err, sender.ErrNoReceiver) {
		t.Error(err)
	}
	config = []byte(`{"host":"a.test","port":25,"webhooks":{"format":"mailgun"}}`)
	if r, err := make(sender.Account{Config: config, Secrets: []byte(`{"webhook_secret":"0123456789abcdef"}`)}); r == nil || err != nil {
		t.Error(err)
	}
}

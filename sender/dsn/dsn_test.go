package dsn_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lemma"
	"lemma/events"
	"lemma/sender"
	"lemma/sender/dsn"
	"lemma/sender/report"
)

var (
	key  = report.Key("a secret of 16 bytes or more")
	ntf  = lemma.FormatNotificationID(lemma.NewID(), lemma.NewID())
	ours = "<" + string(key.AppendMessageID(nil, ntf)) + "@shop.example>"
	now  = time.Date(2026, 11, 22, 18, 0, 0, 0, time.UTC)
	last = time.Date(2026, 11, 22, 17, 58, 0, 0, time.UTC)
)

// notification is a delivery status notification as Postfix writes it, with fields of
// recipients.
func notification(returned string, recipients ...string) string {
	return `From: MAILER-DAEMON@mx.example.test (Mail Delivery System)
To: bounces@shop.example
Subject: Undelivered Mail Returned to Sender
Date: Sun, 22 Nov 2026 17:59:00 +0000
Auto-Submitted: auto-replied
MIME-Version: 1.0
Content-Type: multipart/report; report-type=delivery-status;
	boundary="4F1A/mx.example.test"

This is a MIME-encapsulated message.

--4F1A/mx.example.test
Content-Description: Notification
Content-Type: text/plain; charset=us-ascii

This is the mail system at host mx.example.test.

--4F1A/mx.example.test
Content-Description: Delivery report
Content-Type: message/delivery-status

Reporting-MTA: dns; mx.example.test
X-Postfix-Queue-ID: 4F1A
Arrival-Date: Sun, 22 Nov 2026 17:57:00 +0000 (UTC)

` + strings.Join(recipients, "\n") + `
--4F1A/mx.example.test
Content-Description: Undelivered Message Headers
Content-Type: text/rfc822-headers

Return-Path: <bounces@shop.example>
From: news@shop.example
Subject: Hello
 world
Message-ID: ` + returned + `
To: user@example.test

--4F1A/mx.example.test--
`
}

func recipient(action, status, diagnostic string) string {
	return `Final-Recipient: rfc822; user@example.test
Original-Recipient: rfc822;user@example.test
Action: ` + action + `
Status: ` + status + `
Remote-MTA: dns; mail.example.test
Diagnostic-Code: smtp; ` + diagnostic + `
Last-Attempt-Date: Sun, 22 Nov 2026 17:58:00 +0000
`
}

func complaint(kind string) string {
	return `From: <abusedesk@example.test>
Date: Sun, 22 Nov 2026 17:58:00 +0000
Subject: FW: Earn money
To: <bounces@shop.example>
MIME-Version: 1.0
Content-Type: multipart/report; report-type=feedback-report; boundary="part1_13d"

--part1_13d
Content-Type: text/plain; charset="US-ASCII"

This is an email abuse report.
--part1_13d
Content-Type: message/feedback-report

Feedback-Type: ` + kind + `
User-Agent: SomeGenerator/1.0
Version: 1
Arrival-Date: Sun, 22 Nov 2026 17:58:00 +0000
Reported-Domain: shop.example
Original-Rcpt-To: <user@example.test>

--part1_13d
Content-Type: message/rfc822
Content-Disposition: inline

From: <news@shop.example>
Received: from mailserver.example.net
To: <redacted>
Subject: Earn money
Message-ID: ` + ours + `
Date: Sun, 22 Nov 2026 17:00:00 +0000

Spam Spam Spam
Message-ID: <other@shop.example>
--part1_13d--
`
}

func receive(body string) ([]events.Report, error) {
	return dsn.New(key).Receive(context.Background(), sender.WebhookRequest{Body: []byte(body), At: now})
}

func one(kind events.Type, reason string, code int, detail string) []events.Report {
	return []events.Report{{ID: "dsn/" + ntf + "/" + string(kind), Notification: ntf, Type: kind, Reason: reason, Code: code, Detail: detail,
		OccurredAt: last}}
}

func TestReceive(t *testing.T) {
	t.Parallel()
	unknown := "550 5.1.1 <user@example.test>: user unknown"
	for _, c := range []struct {
		name, body string
		want       []events.Report
	}{
		{"an unknown user", notification(ours, recipient("failed", "5.1.1", unknown)),
			one(events.TypeBounced, "5.1.1", 550, "smtp; 550 5.1.1 <[address]>: user unknown")},
		{"a code in the diagnosis", notification(ours, recipient("failed (x)", "5.0.0", unknown)),
			one(events.TypeBounced, "5.1.1", 550, "smtp; 550 5.1.1 <[address]>: user unknown")},
		{"a full mailbox", notification(ours, recipient("failed", "5.2.2", "552 full")),
			one(events.TypeSoftBounced, "5.2.2", 552, "smtp; 552 full")},
		{"too many tries", notification(ours, recipient("failed", "4.4.7", "451 later")),
			one(events.TypeSoftBounced, "4.4.7", 451, "smtp; 451 later")},
		{"a policy", notification(ours, recipient("failed", "5.7.1", "550 no")), one(events.TypeUndelivered, "5.7.1", 550, "smtp; 550 no")},
		{"a delay", notification(ours, recipient("delayed", "4.0.0", "421 later")), one(events.TypeDelayed, "4.0.0", 421, "smtp; 421 later")},
		{"a delivery", notification(ours, recipient("Delivered", "2.0.0", "250 ok")), one(events.TypeDelivered, "2.0.0", 250, "smtp; 250 ok")},
		{"an alias", notification(ours, recipient("expanded", "2.0.0", "250 ok")), one(events.TypeDelivered, "2.0.0", 250, "smtp; 250 ok")},
		{"a gateway", notification(ours, recipient("relayed", "2.0.0", "250 ok")), one(events.TypeAccepted, "2.0.0", 250, "smtp; 250 ok")},
		{"an alias with one bounce", notification(ours, recipient("failed", "5.1.1", "550 no"), recipient("relayed", "2.0.0", "250 ok")),
			one(events.TypeAccepted, "2.0.0", 250, "smtp; 250 ok")},
		{"a new action", notification(ours, recipient("other", "2.0.0", "250 ok")), nil},
		{"no recipient", notification(ours), nil},
		{"the id in the status", strings.Replace(notification("", recipient("failed", "5.1.1", "550 no")), "X-Postfix-Queue-ID: 4F1A",
			"X-Original-Message-ID:\n\t"+ours, 1), one(events.TypeBounced, "5.1.1", 550, "smtp; 550 no")},
		{"a whole message",
			strings.Replace(notification(ours, recipient("failed", "5.1.1", "550 no")), "text/rfc822-headers", "message/rfc822", 1),
			one(events.TypeBounced, "5.1.1", 550, "smtp; 550 no")},
		{"CRLF", strings.ReplaceAll(notification(ours, recipient("failed", "5.1.1", "550 no")), "\n", "\r\n"),
			one(events.TypeBounced, "5.1.1", 550, "smtp; 550 no")},
		{"without its end", strings.TrimSuffix(notification(ours, recipient("failed", "5.1.1", "550 no")), "\n--4F1A/mx.example.test--\n"),
			one(events.TypeBounced, "5.1.1", 550, "smtp; 550 no")},
		{"a complaint", complaint("abuse"), one(events.TypeComplained, "abuse", 0, "")},
		{"a complaint about fraud", complaint("fraud"), one(events.TypeComplained, "fraud", 0, "")},
		{"an opt-out", complaint("opt-out"), one(events.TypeUnsubscribed, "opt_out", 0, "")},
		{"no spam", complaint("not-spam"), nil},
		{"a failure of DKIM", complaint("auth-failure"), nil},
	} {
		got, err := receive(c.body)
		if diff := cmp.Diff(c.want, got); diff != "" || err != nil {
			t.Errorf("%s: %v\n%s", c.name, err, diff)
		}
	}
}

// Only a mail that quotes the proven Message-ID reports anything: an id can be computed
// from the campaign and the address.
func TestForgery(t *testing.T) {
	t.Parallel()
	other := lemma.FormatNotificationID(lemma.NewID(), lemma.NewID())
	_, proof, _ := strings.Cut(strings.Trim(ours, "<>"), ".")
	bounce := recipient("failed", "5.1.1", "550 no")
	for _, c := range []struct {
		name, body string
		want       error
	}{
		{"the id alone", notification("<"+ntf+"@shop.example>", bounce), sender.ErrForged},
		{"another proof", notification("<"+ntf+".0000000000000000@shop.example>", bounce), sender.ErrForged},
		{"the proof of another notification", notification("<"+other+"."+proof+">", bounce), sender.ErrForged},
		{"another server's message", notification("<20261122@other.example>", bounce), sender.ErrUnreadable},
		{"no message", notification("", bounce), sender.ErrUnreadable},
		{"the proof in a text", notification("", bounce+"\nText: "+ours), sender.ErrUnreadable},
		{"nothing", "", sender.ErrUnreadable},
		{"no header", "\n\nx", sender.ErrUnreadable},
		{"an automatic answer", "Subject: I am away\nAuto-Submitted: auto-replied\nIn-Reply-To: " + ours + "\n\nx", sender.ErrUnreadable},
		{"no boundary", "Content-Type: multipart/report\n\n" + ours, sender.ErrUnreadable},
		{"truncated before the headers", notification(ours, bounce)[:700], sender.ErrUnreadable},
		{"too large", notification(ours, bounce) + strings.Repeat("x", sender.MostWebhook), sender.ErrUnreadable},
	} {
		if got, err := receive(c.body); !errors.Is(err, c.want) || got != nil {
			t.Errorf("%s: %+v, %v", c.name, got, err)
		}
	}
	if _, err := dsn.New(nil).Receive(t.Context(), sender.WebhookRequest{Body: []byte(notification(ours, bounce)), At: now}); !errors.Is(err,
		sender.ErrForged) {
		t.Errorf("without a key: %v", err)
	}
}

// However often a mail is written, with whatever text, its report has one id. Its time is
// near the time of arrival.
func TestRepeats(t *testing.T) {
	t.Parallel()
	ids := map[string]bool{}
	for _, date := range []string{"Sun, 22 Nov 2026 17:58:00 +0000", "Mon, 22 Nov 2060 17:58:00 +0000",
		"Sat, 22 Nov 1980 17:58:00 +0000", "x"} {
		body := strings.ReplaceAll(notification(ours, recipient("failed", "5.1.1", "550 "+date)), "Sun, 22 Nov 2026 17:58:00 +0000", date)
		got, err := receive(body)
		if err != nil || len(got) != 1 || now.Sub(got[0].OccurredAt) > time.Hour || got[0].OccurredAt.After(now) {
			t.Fatalf("%q: %+v, %v", date, got, err)
		}
		ids[got[0].ID] = true
	}
	if len(ids) != 1 {
		t.Errorf("%v", ids)
	}
}

// A mail with very many fields and parts is read in bounded time.
func TestBounds(t *testing.T) {
	t.Parallel()
	long := notification(ours, strings.Repeat("Action: failed\n\n", 20000), recipient("failed", "5.1.1", "550 no"))
	if _, err := receive(long); err != nil {
		t.Error(err)
	}
	folded := notification(ours, "Action: failed\nStatus: 5.1.1\nX: a\n"+strings.Repeat(" folded\n", 5000))
	if got, err := receive(folded); err != nil || len(got) != 1 || got[0].Type != events.TypeBounced {
		t.Errorf("%+v, %v", got, err)
	}
	mail := notification(ours, recipient("failed", "5.1.1", "550 no"))
	for _, kind := range []string{"multipart/report;", "message/delivery-status\n"} {
		long := kind[:len(kind)-1] + strings.Repeat("; a*0=x", 1000) + kind[len(kind)-1:]
		if got, err := receive(strings.Replace(mail, kind, long, 1)); len(got) > 0 {
			t.Errorf("%s with thousands of parameters: %+v, %v", kind, got, err)
		}
	}
	spaced := strings.ReplaceAll(strings.Replace(mail, `boundary="4F1A/mx.example.test"`, `boundary="4F1A/mx.example.test "`, 1),
		"--4F1A/mx.example.test", "--4F1A/mx.example.test ")
	const status = "Content-Type: message/delivery-status"
	if _, err := receive(strings.Replace(spaced, status, strings.Repeat("A:\n", 600)+status, 1)); !errors.Is(err, sender.ErrUnreadable) {
		t.Errorf("many fields behind a boundary that ends in a space: %v", err)
	}
	for what, header := range map[string]string{"fields": strings.Repeat("A:\n", 450),
		"bytes":        "A: " + strings.Repeat("x", 60_000) + "\n",
		"folded lines": "A: x\n" + strings.Repeat(" x\n", 10_000)} {
		for _, before := range []string{"Content-Type: multipart/report", "Content-Type: message/delivery-status"} {
			if got, err := receive(strings.Replace(mail, before, header+before, 1)); err != nil || len(got) != 1 {
				t.Errorf("some %s: %+v, %v", what, got, err)
			}
			if got, err := receive(strings.Replace(mail, before, header+header+header+before, 1)); !errors.Is(err, sender.ErrUnreadable) {
				t.Errorf("many %s: %+v, %v", what, got, err)
			}
		}
	}
}

func FuzzReceive(f *testing.F) {
	f.Add([]byte(notification(ours, recipient("failed", "5.1.1", "550 5.1.1 no"))))
	f.Add([]byte(complaint("abuse")))
	f.Add([]byte("Content-Type: multipart/report; boundary=a\n\n--a\n" +
		"Content-Type: message/rfc822\nContent-Transfer-Encoding: base64\n\n%%\n--a"))
	f.Add([]byte("Content-Type: multipart/report; boundary=\"\"\n\n----"))
	f.Add([]byte("Content-Type: multipart/report; boundary=a\n\n--a\nContent-Type: message/delivery-status\n\n : \n\t\n--a--"))
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := dsn.New(key).Receive(t.Context(), sender.WebhookRequest{Body: body, At: now})
		if err != nil && !errors.Is(err, sender.ErrUnreadable) && !errors.Is(err, sender.ErrForged) || len(got) > 1 {
			t.Errorf("%+v, %v", got, err)
		}
		for _, r := range got {
			if r.Notification == "" || r.Type == "" || len(r.Detail) > 200 {
				t.Errorf("%+v", r)
			}
		}
	})
}

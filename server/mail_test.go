package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/emersion/go-smtp"
	"github.com/google/uuid"

	"lemma"
	"lemma/lmtp"
	"lemma/pgtest"
	"lemma/providers"
	"lemma/sender/report"
)

const mailSecret = "0123456789abcdef"

// mailProvider makes an SMTP provider that receives reports about its mail.
func mailProvider(t *testing.T, s *Server, ws uuid.UUID, format string) providers.Provider {
	t.Helper()
	made, err := s.Providers.Create(t.Context(), ws, providers.NewProvider{ID: lemma.NewID(), Name: format, Kind: "smtp",
		Config:  json.RawMessage(`{"host":"mail.example.com","port":587,"webhooks":{"format":"` + format + `"}}`),
		Secrets: json.RawMessage(`{"webhook_secret":"` + mailSecret + `"}`)})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// bounceMail is a delivery status notification about a message with that Message-ID.
func bounceMail(id string) string {
	return "Content-Type: multipart/report; report-type=delivery-status; boundary=b\r\n\r\n" +
		"--b\r\nContent-Type: message/delivery-status\r\n\r\nReporting-MTA: dns; mx.example.test\r\n\r\n" +
		"Final-Recipient: rfc822; user@example.test\r\nAction: failed\r\nStatus: 5.1.1\r\n\r\n" +
		"--b\r\nContent-Type: text/rfc822-headers\r\n\r\nMessage-ID: <" + id + "@shop.example>\r\n\r\n--b--\r\n"
}

// A mail that quotes a proven Message-ID is stored once; others change nothing, and an
// unknown provider is refused.
func TestMailsAboutBounces(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	s := newServer(t, pool, Config{})
	ws := pgtest.Workspace(t, pool)
	p := mailProvider(t, s, ws, "dsn")
	if p.Receives {
		t.Error("second attempts would wait for events that do not come")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	mails := lmtp.New(s.receiveMail, s.log)
	go mails.Serve(l)
	t.Cleanup(func() { mails.Shutdown(context.Background()) })
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	conn := smtp.NewClientLMTP(client)
	defer conn.Close()
	ntf := lemma.FormatNotificationID(lemma.NewID(), lemma.NewID())
	proven := string(report.Key(mailSecret).AppendMessageID(nil, ntf))
	id := lemma.FormatID(lemma.PrefixProvider, p.ID)
	other := lemma.FormatID(lemma.PrefixProvider, lemma.NewID())
	for _, c := range []struct {
		name, to, mail string
		code, stored   int
	}{
		{"without the proof", id, bounceMail(ntf), 250, 0},
		{"an automatic answer", id, "Subject: I am away\r\n\r\nx\r\n", 250, 0},
		{"of another provider", other, bounceMail(proven), 550, 0},
		{"with the proof", id, bounceMail(proven), 250, 1},
		{"again", id, bounceMail(proven), 250, 1},
	} {
		if code := mailTo(t, conn, c.to+"@bounces.shop.example", c.mail); code != c.code {
			t.Errorf("%s: %d, want %d", c.name, code, c.code)
		}
		var stored int
		if err := pool.QueryRow(t.Context(), `
			select count(*) from provider_events where workspace_id = $1 and provider_id = $2 and type = 'bounced'`, ws, p.ID).
			Scan(&stored); err != nil || stored != c.stored {
			t.Errorf("%s: %d events, want %d, %v", c.name, stored, c.stored, err)
		}
	}
}

func mailTo(t *testing.T, c *smtp.Client, to, mail string) (code int) {
	t.Helper()
	err := errors.Join(c.Mail("", nil), c.Rcpt(to, nil))
	if err == nil {
		w, failed := c.Data()
		if failed != nil {
			t.Fatal(failed)
		}
		fmt.Fprint(w, mail)
		_, err = w.CloseWithLMTPResponse()
	}
	if all, ok := errors.AsType[smtp.LMTPDataError](err); ok {
		return all[to].Code
	}
	if one, ok := errors.AsType[*smtp.SMTPError](err); ok {
		return one.Code
	}
	if err != nil {
		t.Fatal(err)
	}
	return 250
}

// Events of a service are stored once over HTTP, and forged ones are not.
func TestEventsOfAService(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	s := newServer(t, pool, Config{})
	ws := pgtest.Workspace(t, pool)
	p := mailProvider(t, s, ws, "postmark")
	if !p.Receives {
		t.Error("the provider receives no events")
	}
	body := `{"RecordType":"Delivery","MessageID":"m","DeliveredAt":"` + time.Now().UTC().Format(time.RFC3339) + `"}`
	for _, c := range []struct {
		secret         string
		status, stored int
	}{{"another secret", 401, 0}, {mailSecret, 200, 1}, {mailSecret, 200, 1}} {
		r := httptest.NewRequest(http.MethodPost, "/hooks/smtp/"+lemma.FormatID(lemma.PrefixProvider, p.ID), strings.NewReader(body))
		r.SetBasicAuth("lemma", c.secret)
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		s.API.ServeHTTP(w, r)
		var stored int
		err := pool.QueryRow(t.Context(), `
			select count(*) from provider_events where workspace_id = $1 and provider_id = $2`, ws, p.ID).Scan(&stored)
		if w.Code != c.status || stored != c.stored || err != nil {
			t.Errorf("%q: %d %s, %d events, %v", c.secret, w.Code, w.Body, stored, err)
		}
	}
}

package smtp

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"lemma/sender"
)

// An API key that may add a provider may name any host and port. Nothing that
// listens there can be read with it: no text from before MAIL, no name in a
// certificate, and no address of ours.
func TestOtherServicesAreNotQuoted(t *testing.T) {
	t.Parallel()
	const banner = "SSH-2.0-Canary_8.9"
	for _, c := range []struct {
		name, verb, reply, config string
		tls                       bool
		reason, detail            string
	}{
		{"greeting refused", "greeting", "554 5.7.1 " + banner, "", false, "greeting_refused", "the server answered 554 5.7.1"},
		{"greeting refused in lines", "greeting", "554-5.7.1 " + banner + "\r\n554 " + banner, "", false, "greeting_refused",
			"the server answered 554 5.7.1"},
		{"no mail server", "greeting", banner, "", false, "greeting_refused", "the server's answer is not an SMTP reply"},
		{"hung up", "greeting", hangUp, "", false, "greeting_refused", "the server closed the connection"},
		{"ehlo refused", "EHLO", "502 " + banner, "", false, "ehlo_refused", "the server answered 502"},
		{"starttls refused", "STARTTLS", "454 4.7.0 " + banner, `"tls":"starttls"`, true, "tls_failed", "the server answered 454 4.7.0"},
		{"no TLS", "greeting", banner, `"tls":"implicit"`, false, "tls_failed", "the server does not speak TLS on this port"},
		{"untrusted", "", "", `"tls":"starttls"`, true, "tls_failed", "the server's certificate is signed by an unknown authority"},
		{"login refused", "AUTH", "535 5.7.8 " + banner, "", false, "auth_failed", "the server answered 535 5.7.8"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := &server{offers: "PIPELINING AUTH PLAIN", answer: func(verb string, _ int) string {
				switch verb {
				case c.verb:
					return c.reply
				case "EHLO":
					return "250-" + banner + "\r\n250-STARTTLS\r\n250 AUTH PLAIN"
				case "greeting":
					return "220 " + banner
				}
				return ""
			}}
			if c.tls {
				s.tls, _ = certificate(t)
			}
			serve(t, s)
			var log bytes.Buffer
			carrier := carrierTo(t, s, c.config)
			carrier.username, carrier.password, carrier.log = "me", "secret", slog.New(slog.NewTextHandler(&log, nil))
			got := carrier.Send(t.Context(), messages(1))[0]
			if got.Outcome != sender.NotAccepted || !got.Provider || got.Reason != c.reason || got.Detail != c.detail {
				t.Errorf("%+v, want %s: %s", got, c.reason, c.detail)
			}
			if strings.Contains(c.reply, "554 5") && !strings.Contains(log.String(), banner) {
				t.Errorf("the log does not have the server's text: %s", log.String())
			}
		})
	}
}

// A certificate for another name is not quoted either.
func TestNamesInCertificatesAreNotQuoted(t *testing.T) {
	t.Parallel()
	config, roots := certificate(t)
	s := serve(t, &server{tls: config, implied: true})
	c := carrierTo(t, s, `"tls":"implicit"`)
	c.roots = roots
	address := netip.MustParseAddr(c.host)
	c.dialer.Resolve = func(context.Context, string, string) ([]netip.Addr, error) { return []netip.Addr{address}, nil }
	c.host = "canary.example"
	if got := c.Send(t.Context(), messages(1))[0]; got.Detail != "the server's certificate is for another name" {
		t.Errorf("%+v", got)
	}
}

// Replies of a mail server about a message are shown: support needs them.
func TestRepliesToAMessageAreShown(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"MAIL", "RCPT", "DATA", "body"} {
		s := serve(t, &server{answer: func(sent string, _ int) string {
			if sent == verb {
				return "450 4.7.1 come back later"
			}
			return ""
		}})
		if got := carrierTo(t, s, "").Send(t.Context(), messages(1))[0]; got.Detail != "4.7.1 come back later" {
			t.Errorf("%s: %+v", verb, got)
		}
	}
}

// A connection that is lost does not show the addresses at its ends.
func TestLostConnectionsDoNotShowAddresses(t *testing.T) {
	t.Parallel()
	s := serve(t, &server{answer: func(verb string, _ int) string {
		if verb == "RCPT" {
			return hang
		}
		return ""
	}})
	c := carrierTo(t, s, "")
	c.timeout = time.Second
	got := c.Send(t.Context(), messages(1))[0]
	if got.Reason != "timeout" || strings.Contains(got.Detail, "127.0.0.1") || got.Detail == "" {
		t.Errorf("%+v", got)
	}
}

// A name that leads to the machine itself is not connected to.
func TestForbiddenAddress(t *testing.T) {
	t.Parallel()
	s := serve(t, &server{})
	_, port, _ := net.SplitHostPort(s.address)
	for _, host := range []string{"localhost", "127.0.0.1"} {
		c, err := open([]byte(`{"host":"`+host+`","port":`+port+`,"tls":"none"}`), nil, Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		got := c.Send(t.Context(), messages(1))[0]
		if got.Outcome != sender.NotAccepted || !got.Provider || got.Reason != "forbidden_address" ||
			got.Detail != "the host is at an address that may not be dialled" {
			t.Errorf("%s: %+v", host, got)
		}
	}
	if s.connections() != 0 {
		t.Errorf("%d connections", s.connections())
	}
}

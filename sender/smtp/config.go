package smtp

import (
	"encoding/json"
	"net"
	"os"
	"strings"
	"time"

	"lemma/sender"
	"lemma/sender/form"
	"lemma/sender/mime"
)

// settings are an account's config and secrets, checked, defaults filled in.
type settings struct {
	host, tlsMode, username, password string
	port                              int
	helo                              string
	maxConnections                    int
	timeout                           time.Duration // for one round trip
	own                               mime.Own      // the Message-ID, and a header for the webhooks
	dkim                              *signer       // nil: not signed
	returnPath                        string        // the envelope's sender; empty: the message's
	receiver                          sender.Receiver
}

// The modes of TLS. With starttls a server must offer it.
const (
	tlsNone     = "none"
	tlsStart    = "starttls"
	tlsImplicit = "implicit"
)

const (
	defaultConnections = 8
	mostConnections    = 100
	defaultTimeout     = 30
	mostTimeout        = 60 // seconds; a call is a dial, an envelope and a body, and must end well within a lease
)

func parse(config, secrets json.RawMessage) (settings, error) {
	f := settingsForm{form.Form{Noun: "an SMTP provider", Lines: []string{"/secrets/dkim_private_key"}}}
	s := settings{tlsMode: tlsStart, maxConnections: defaultConnections, timeout: defaultTimeout * time.Second}
	seconds := defaultTimeout
	var dkim, webhooks json.RawMessage
	var domain, selector, key, secret string
	f.Object("/config", config, map[string]any{
		"host": &s.host, "port": &s.port, "tls": &s.tlsMode, "username": &s.username, "helo": &s.helo,
		"max_connections": &s.maxConnections, "timeout_seconds": &seconds, "message_id_domain": &s.own.Domain, "dkim": &dkim,
		"return_path": &s.returnPath, "webhooks": &webhooks,
	})
	f.Object("/secrets", secrets, map[string]any{"password": &s.password, "dkim_private_key": &key, "webhook_secret": &secret})
	if form.Present(dkim) {
		f.Object("/config/dkim", dkim, map[string]any{"domain": &domain, "selector": &selector})
	}
	if f.OK() {
		f.server(&s)
		f.numbers(&s, seconds)
		f.login(&s)
		s.dkim = f.signature(form.Present(dkim), domain, selector, key)
		f.reports(&s, webhooks, secret)
	}
	s.timeout = time.Duration(seconds) * time.Second
	if s.helo == "" {
		s.helo = ownName()
	}
	return s, f.Err()
}

// settingsForm checks the fields that depend on each other.
type settingsForm struct{ form.Form }

func (f *settingsForm) server(s *settings) {
	if !form.IsHost(s.host) {
		f.Fault("/config/host", "invalid_host", "must be the name or the IP address of a mail server")
	}
	if s.tlsMode != tlsNone && s.tlsMode != tlsStart && s.tlsMode != tlsImplicit {
		f.Fault("/config/tls", "invalid_choice", "must be none, starttls or implicit")
	}
	if s.helo != "" && !form.IsHost(strings.Trim(s.helo, "[]")) {
		f.Fault("/config/helo", "invalid_host", "must be a host name, or an IP address in brackets")
	}
	if s.own.Domain != "" && (!form.IsName(s.own.Domain) || net.ParseIP(s.own.Domain) != nil) {
		f.Fault("/config/message_id_domain", "invalid_host", "must be a domain name")
	}
}

func (f *settingsForm) numbers(s *settings, seconds int) {
	if s.port < 1 || s.port > 65535 {
		f.Fault("/config/port", "out_of_range", "must be from 1 to 65535; usual are 587 with starttls and 465 with implicit")
	}
	if s.maxConnections < 1 || s.maxConnections > mostConnections {
		f.Fault("/config/max_connections", "out_of_range", "must be from 1 to 100")
	}
	if seconds < 1 || seconds > mostTimeout {
		f.Fault("/config/timeout_seconds", "out_of_range", "must be from 1 to 60")
	}
}

// login rejects a password that would be sent unencrypted over a network.
func (f *settingsForm) login(s *settings) {
	switch {
	case s.username == "" && s.password != "":
		f.Fault("/config/username", "required", "a password needs a username")
	case s.username != "" && s.password == "":
		f.Fault("/secrets/password", "required", "a username needs a password")
	case s.username != "" && s.tlsMode == tlsNone && !isLoopback(s.host):
		f.Fault("/config/tls", "insecure", "a password is sent over TLS or to this machine only: use starttls or implicit")
	}
}

func (f *settingsForm) signature(wanted bool, domain, selector, key string) *signer {
	if !wanted {
		if key != "" {
			f.Fault("/config/dkim", "required", "a DKIM key needs a domain and a selector")
		}
		return nil
	}
	if !form.IsName(domain) {
		f.Fault("/config/dkim/domain", "invalid_host", "must be a domain name")
	}
	if !form.IsName(selector) {
		f.Fault("/config/dkim/selector", "invalid_selector", "must be made of letters, digits, hyphens and dots")
	}
	s, err := newSigner(domain, selector, key)
	if err != nil {
		f.Fault("/secrets/dkim_private_key", "invalid_key", err.Error())
	}
	return s
}

// Warnings are about settings with which mail can be read on its way. Both modes of
// TLS verify the certificate.
func Warnings(config json.RawMessage) []string {
	s, _ := parse(config, nil) // Check reports its faults
	if s.tlsMode != tlsNone || isLoopback(s.host) {
		return nil
	}
	return []string{"mail is not encrypted on its way to the server; use tls starttls or implicit"}
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}

// ownName is the host name for EHLO.
func ownName() string {
	name, err := os.Hostname()
	if err != nil || !form.IsHost(name) {
		return "localhost"
	}
	return name
}

// Moves returns the members that differ between two configs and decide where a
// password is sent and how it is protected. Secrets must not follow such a change: an
// API key that may edit a provider could have the password sent to another server.
// Without a password it returns nil, since the DKIM key is never sent.
func Moves(before, after, secrets json.RawMessage) (members []string) {
	old, _ := parse(before, nil) // Check reports its faults
	now, _ := parse(after, nil)
	var sent struct{ Password string }
	if err := json.Unmarshal(secrets, &sent); !form.Present(secrets) || err == nil && sent.Password == "" {
		return nil
	}
	for _, m := range []struct {
		name string
		same bool
	}{
		{"host", strings.EqualFold(old.host, now.host)}, {"port", old.port == now.port},
		{"tls", old.tlsMode == now.tlsMode}, {"username", old.username == now.username},
	} {
		if !m.same {
			members = append(members, m.name)
		}
	}
	return members
}

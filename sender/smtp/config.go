package smtp

import (
	"encoding/json"
	"net"
	"os"
	"sort"
	"strings"
	"time"

	"lemma"
)

// settings are an account's config and secrets, checked, defaults filled in.
type settings struct {
	host, tlsMode, username, password string
	port                              int
	helo                              string
	maxConnections                    int
	timeout                           time.Duration // for one round trip
	idDomain                          string        // right side of Message-ID; empty: the sender's domain
	dkim                              *signer       // nil: not signed
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
	var f form
	s := settings{tlsMode: tlsStart, maxConnections: defaultConnections, timeout: defaultTimeout * time.Second}
	seconds := defaultTimeout
	var dkim json.RawMessage
	var domain, selector, key string
	f.object("/config", config, map[string]any{
		"host": &s.host, "port": &s.port, "tls": &s.tlsMode, "username": &s.username, "helo": &s.helo,
		"max_connections": &s.maxConnections, "timeout_seconds": &seconds, "message_id_domain": &s.idDomain, "dkim": &dkim,
	})
	f.object("/secrets", secrets, map[string]any{"password": &s.password, "dkim_private_key": &key})
	if present(dkim) {
		f.object("/config/dkim", dkim, map[string]any{"domain": &domain, "selector": &selector})
	}
	if len(f.faults) == 0 {
		f.server(&s)
		f.numbers(&s, seconds)
		f.login(&s)
		s.dkim = f.signature(present(dkim), domain, selector, key)
	}
	s.timeout = time.Duration(seconds) * time.Second
	if s.helo == "" {
		s.helo = ownName()
	}
	return s, f.err()
}

func present(raw json.RawMessage) bool {
	return len(raw) > 0 && string(raw) != "null"
}

// form collects the faults of all fields.
type form struct{ faults []lemma.Field }

func (f *form) fault(pointer, code, detail string) {
	f.faults = append(f.faults, lemma.Field{Pointer: pointer, Code: code, Detail: detail})
}

func (f *form) err() error {
	if len(f.faults) == 0 {
		return nil
	}
	sort.Slice(f.faults, func(i, j int) bool { return f.faults[i].Pointer < f.faults[j].Pointer })
	return &lemma.Error{Kind: lemma.Invalid, Message: "the provider's settings are not valid", Fields: f.faults}
}

// object reads a JSON object whose members are all known. Nothing is the empty object,
// and a null member is absent.
func (f *form) object(pointer string, raw json.RawMessage, members map[string]any) {
	if !present(raw) {
		return
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(raw, &object); err != nil {
		f.fault(pointer, "wrong_type", "must be a JSON object")
		return
	}
	for name, value := range object {
		at := pointer + lemma.Pointer(name)
		target, known := members[name]
		if !known {
			f.fault(at, "unknown_field", "an SMTP provider has no such field")
		} else if present(value) {
			f.member(at, value, target)
		}
	}
}

func (f *form) member(at string, value json.RawMessage, target any) {
	if raw, ok := target.(*json.RawMessage); ok {
		*raw = value
		return
	}
	if err := json.Unmarshal(value, target); err != nil {
		f.fault(at, "wrong_type", "must be a "+wanted(target))
		return
	}
	if text, ok := target.(*string); ok && at != "/secrets/dkim_private_key" && hasBreak(*text) {
		f.fault(at, "line_break", "must not contain line breaks or NUL")
	}
}

func wanted(target any) string {
	if _, ok := target.(*string); ok {
		return "string"
	}
	return "whole number"
}

func (f *form) server(s *settings) {
	if !isHost(s.host) {
		f.fault("/config/host", "invalid_host", "must be the name or the IP address of a mail server")
	}
	if s.tlsMode != tlsNone && s.tlsMode != tlsStart && s.tlsMode != tlsImplicit {
		f.fault("/config/tls", "invalid_choice", "must be none, starttls or implicit")
	}
	if s.helo != "" && !isHost(strings.Trim(s.helo, "[]")) {
		f.fault("/config/helo", "invalid_host", "must be a host name, or an IP address in brackets")
	}
	if s.idDomain != "" && (!isName(s.idDomain) || net.ParseIP(s.idDomain) != nil) {
		f.fault("/config/message_id_domain", "invalid_host", "must be a domain name")
	}
}

func (f *form) numbers(s *settings, seconds int) {
	if s.port < 1 || s.port > 65535 {
		f.fault("/config/port", "out_of_range", "must be from 1 to 65535; usual are 587 with starttls and 465 with implicit")
	}
	if s.maxConnections < 1 || s.maxConnections > mostConnections {
		f.fault("/config/max_connections", "out_of_range", "must be from 1 to 100")
	}
	if seconds < 1 || seconds > mostTimeout {
		f.fault("/config/timeout_seconds", "out_of_range", "must be from 1 to 60")
	}
}

// login rejects a password that would be sent unencrypted over a network.
func (f *form) login(s *settings) {
	switch {
	case s.username == "" && s.password != "":
		f.fault("/config/username", "required", "a password needs a username")
	case s.username != "" && s.password == "":
		f.fault("/secrets/password", "required", "a username needs a password")
	case s.username != "" && s.tlsMode == tlsNone && !isLoopback(s.host):
		f.fault("/config/tls", "insecure", "a password is sent over TLS or to this machine only: use starttls or implicit")
	}
}

func (f *form) signature(wanted bool, domain, selector, key string) *signer {
	if !wanted {
		if key != "" {
			f.fault("/config/dkim", "required", "a DKIM key needs a domain and a selector")
		}
		return nil
	}
	if !isName(domain) {
		f.fault("/config/dkim/domain", "invalid_host", "must be a domain name")
	}
	if !isName(selector) {
		f.fault("/config/dkim/selector", "invalid_selector", "must be made of letters, digits, hyphens and dots")
	}
	s, err := newSigner(domain, selector, key)
	if err != nil {
		f.fault("/secrets/dkim_private_key", "invalid_key", err.Error())
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

// isHost accepts an IP address or a name of letters, digits, hyphens, underscores and
// dots: nothing that could inject a command.
func isHost(s string) bool { return isName(s) || net.ParseIP(s) != nil }

func isName(s string) bool {
	for i := range len(s) {
		if c := s[i]; !alphanumeric(c) && c != '-' && c != '.' && c != '_' {
			return false
		}
	}
	return s != "" && len(s) <= 253 && s[0] != '.' && s[0] != '-'
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}

func hasBreak(s string) bool { return strings.ContainsAny(s, "\r\n\x00") }

// ownName is the host name for EHLO.
func ownName() string {
	name, err := os.Hostname()
	if err != nil || !isHost(name) {
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
	if err := json.Unmarshal(secrets, &sent); !present(secrets) || err == nil && sent.Password == "" {
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

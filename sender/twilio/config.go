package twilio

import (
	"encoding/json"
	"net/url"
	"regexp"
	"strings"
	"time"

	"lemma/sender/form"
	"lemma/sender/wire"
)

// settings are an account's config and secrets, checked, defaults filled in.
type settings struct {
	account        string
	service, from  string   // one of them
	endpoint       *url.URL // without a path
	validity       int      // seconds; 0: Twilio's
	authToken      string   // signs callbacks; may be empty
	user, password string   // of requests
	most           int      // requests at a time
	timeout        time.Duration
}

const (
	defaultEndpoint = "https://api.twilio.com"
	defaultTimeout  = 30
	mostValidity    = 36_000 // seconds; the most of Twilio
)

var (
	accountSID = regexp.MustCompile(`^AC[0-9a-f]{32}$`)
	serviceSID = regexp.MustCompile(`^MG[0-9a-f]{32}$`)
	keySID     = regexp.MustCompile(`^SK[0-9a-f]{32}$`)
	secretText = regexp.MustCompile(`^[!-~]{16,128}$`)
	// senders are a phone number, a short code, or an alphanumeric id with a letter.
	senders = regexp.MustCompile(`^(\+[1-9][0-9]{6,14}|[0-9]{3,8}|[A-Za-z0-9 +_&-]*[A-Za-z][A-Za-z0-9 +_&-]*)$`)
)

func parse(config, secrets json.RawMessage, o wire.Operator) (settings, error) {
	f := form.Form{Noun: "a Twilio provider"}
	s := settings{most: wire.DefaultMost}
	seconds, endpoint, key, keySecret := defaultTimeout, defaultEndpoint, "", ""
	var validity *int
	f.Object("/config", config, map[string]any{"account_sid": &s.account, "messaging_service_sid": &s.service, "from": &s.from,
		"endpoint": &endpoint, "validity_seconds": &validity, "max_requests": &s.most, "timeout_seconds": &seconds})
	f.Object("/secrets", secrets, map[string]any{"auth_token": &s.authToken, "api_key_sid": &key, "api_key_secret": &keySecret})
	s.timeout = time.Duration(seconds) * time.Second
	if f.OK() {
		s.endpoint = o.Server(&f, "/config/endpoint", endpoint)
		s.check(&f)
		s.readValidity(&f, validity)
		s.readKeys(&f, key, keySecret)
		wire.CheckNumbers(&f, s.most, seconds)
	}
	return s, f.Err()
}

func (s *settings) check(f *form.Form) {
	if !accountSID.MatchString(s.account) {
		f.Fault("/config/account_sid", "required", "must be the SID of an account of Twilio: AC and 32 hexadecimal digits")
	}
	switch {
	case (s.service == "") == (s.from == ""):
		f.Fault("/config/messaging_service_sid", "required", "must be given, or from instead of it, but not both")
	case s.service != "" && !serviceSID.MatchString(s.service):
		f.Fault("/config/messaging_service_sid", "invalid_sid", "must be MG and 32 hexadecimal digits")
	case s.from != "" && (!senders.MatchString(s.from) || s.from[0] != '+' && len(s.from) > 11):
		f.Fault("/config/from", "invalid_sender", "must be a phone number that begins with +, a short code, or a name of at most 11 characters")
	}
}

func (s *settings) readValidity(f *form.Form, seconds *int) {
	if seconds == nil {
		return
	}
	if s.validity = *seconds; s.validity < 1 || s.validity > mostValidity {
		f.Fault("/config/validity_seconds", "out_of_range", "must be from 1 to 36000 (10 hours)")
	}
}

// readKeys reads what requests are authorized by: the API key if there is one.
func (s *settings) readKeys(f *form.Form, key, keySecret string) {
	s.user, s.password = s.account, s.authToken
	if key != "" || keySecret != "" {
		s.user, s.password = key, keySecret
	}
	if s.authToken != "" && !secretText.MatchString(s.authToken) || s.password == "" && key == "" {
		f.Fault("/secrets/auth_token", "required", "must be the auth token of the account, or an API key must be given")
	}
	if s.user != s.account && !keySID.MatchString(key) {
		f.Fault("/secrets/api_key_sid", "invalid_sid", "must be SK and 32 hexadecimal digits")
	}
	if s.user != s.account && !secretText.MatchString(keySecret) {
		f.Fault("/secrets/api_key_secret", "required", "must be the secret of the API key")
	}
}

// Moves returns the endpoint when it changes: the secrets are sent there. All servers of
// Twilio are one.
var Moves = wire.Moves("endpoint", parse, func(old, next settings) bool {
	return wire.HostOf(old.endpoint) == wire.HostOf(next.endpoint) || ofTwilio(old) && ofTwilio(next)
})

func ofTwilio(s settings) bool { return strings.HasSuffix(wire.HostOf(s.endpoint), ".twilio.com") }

// Warnings lists what a config without a Messaging Service lacks.
func Warnings(config json.RawMessage) []string {
	s, _ := parse(config, nil, wire.Operator{AllowPrivate: true}) // Check reports its faults
	if s.from == "" || s.from[0] == '+' {
		return nil
	}
	return []string{"recipients cannot reply to this sender, so that they cannot send STOP; use a Messaging Service with a phone number"}
}

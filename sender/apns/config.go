package apns

import (
	"encoding/json"
	"net/url"
	"regexp"
	"strings"
	"time"

	"lemma/sender/es256"
	"lemma/sender/form"
	"lemma/sender/wire"
)

// settings are an account's config and secrets, checked, defaults filled in.
type settings struct {
	keyID, teamID, topic string
	environment          string
	endpoint             *url.URL // without a path
	key                  es256.Key
	priority             int
	ttl                  time.Duration
	most                 int           // requests at a time
	timeout              time.Duration // of a call
}

const (
	defaultTTL      = 24 * 60 * 60
	mostTTL         = 28 * defaultTTL // seconds
	defaultPriority = 10
	defaultTimeout  = 30 // seconds
)

// hosts are Apple's, by environment.
var hosts = map[string]string{"production": "api.push.apple.com", "sandbox": "api.sandbox.push.apple.com"}

var (
	tenSigns = regexp.MustCompile(`^[A-Z0-9]{10}$`)
	bundleID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.-]{0,254}$`)
)

func parse(config, secrets json.RawMessage, o wire.Operator) (settings, error) {
	f := form.Form{Noun: "an APNs provider", Lines: []string{"/secrets/private_key"}}
	s := settings{most: wire.DefaultMost, priority: defaultPriority, environment: "production"}
	seconds, ttl, endpoint, key := defaultTimeout, defaultTTL, "", ""
	f.Object("/config", config, map[string]any{"key_id": &s.keyID, "team_id": &s.teamID, "topic": &s.topic, "environment": &s.environment,
		"endpoint": &endpoint, "priority": &s.priority, "ttl_seconds": &ttl, "max_requests": &s.most, "timeout_seconds": &seconds})
	f.Object("/secrets", secrets, map[string]any{"private_key": &key})
	s.timeout, s.ttl = time.Duration(seconds)*time.Second, time.Duration(ttl)*time.Second
	if f.OK() {
		s.endpoint = server(&f, s.environment, endpoint, o)
		s.names(&f)
		s.numbers(&f, seconds, ttl)
		var ok bool
		if s.key, ok = es256.ParsePEM(key); !ok {
			f.Fault("/secrets/private_key", "invalid_key", "must be the content of the .p8 file of an APNs key: a key of P-256 in PEM")
		}
	}
	return s, f.Err()
}

func (s settings) names(f *form.Form) {
	if !tenSigns.MatchString(s.keyID) {
		f.Fault("/config/key_id", "invalid_name", "must be the 10 letters and digits that Apple shows for the key")
	}
	if !tenSigns.MatchString(s.teamID) {
		f.Fault("/config/team_id", "invalid_name", "must be the 10 letters and digits that Apple shows for the team")
	}
	if !bundleID.MatchString(s.topic) {
		f.Fault("/config/topic", "invalid_name", "must be the bundle id of the app, such as com.example.shop")
	}
}

func (s settings) numbers(f *form.Form, seconds, ttl int) {
	if s.priority != 1 && s.priority != 5 && s.priority != 10 {
		f.Fault("/config/priority", "out_of_range", "must be 1, 5 or 10")
	}
	if ttl < 0 || ttl > mostTTL {
		f.Fault("/config/ttl_seconds", "out_of_range", "must be from 0 to 2419200")
	}
	wire.CheckNumbers(f, s.most, seconds)
}

// server is the URL of an environment, or the one that the settings name: another port
// of Apple, or a proxy of the customer.
func server(f *form.Form, environment, endpoint string, o wire.Operator) *url.URL {
	host, known := hosts[environment]
	if !known {
		f.Fault("/config/environment", "invalid_choice", "must be production or sandbox")
	}
	if endpoint == "" {
		return &url.URL{Scheme: "https", Host: host}
	}
	return o.Server(f, "/config/endpoint", endpoint)
}

// Moves returns the endpoint when it changes to another server than Apple's: the tokens
// that the key signs are sent there.
var Moves = wire.Moves("endpoint", parse, func(old, next settings) bool {
	return wire.HostOf(old.endpoint) == wire.HostOf(next.endpoint) || isApple(old) && isApple(next)
})

func isApple(s settings) bool {
	return s.endpoint != nil && (strings.EqualFold(s.endpoint.Hostname(), hosts["production"]) ||
		strings.EqualFold(s.endpoint.Hostname(), hosts["sandbox"]))
}

// Warnings is about the sandbox.
func Warnings(config json.RawMessage) []string {
	s, _ := parse(config, nil, wire.Operator{AllowPrivate: true}) // Check reports its faults
	if s.environment != "sandbox" {
		return nil
	}
	return []string{"the sandbox reaches only apps that were built for development; use production for others"}
}

package webpush

import (
	"encoding/base64"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"time"

	"lemma/sender/es256"
	"lemma/sender/form"
	"lemma/sender/wire"
)

// settings are an account's config and secrets, checked, defaults filled in.
type settings struct {
	subject string // contact for push services
	key     es256.Key
	ttl     int // seconds
	urgency string
	most    int           // requests at a time
	timeout time.Duration // of a call
}

const (
	defaultTTL     = 24 * 60 * 60
	mostTTL        = 28 * defaultTTL // of most push services
	defaultTimeout = 5               // seconds: the browsers' push services answer fast, other endpoints must not hold up a window
)

// urgencies are those of RFC 8030, 5.3.
var urgencies = []string{"very-low", "low", "normal", "high"}

// contact is a subject that the push services of all browsers accept.
var contact = regexp.MustCompile(`^(mailto:[^\s<>@]+@[^\s<>@]+\.[^\s<>@.]+|https://[^\s<>@/]+\.[^\s<>]+)$`)

func parse(config, secrets json.RawMessage) (settings, error) {
	f := form.Form{Noun: "a Web Push provider"}
	s := settings{most: wire.DefaultMost, ttl: defaultTTL, urgency: "normal"}
	seconds, public, private := defaultTimeout, "", ""
	f.Object("/config", config, map[string]any{"subject": &s.subject, "vapid_public_key": &public, "ttl_seconds": &s.ttl,
		"urgency": &s.urgency, "max_requests": &s.most, "timeout_seconds": &seconds})
	f.Object("/secrets", secrets, map[string]any{"vapid_private_key": &private})
	s.timeout = time.Duration(seconds) * time.Second
	if f.OK() {
		s.key = keys(&f, public, private)
		s.check(&f, seconds)
	}
	return s, f.Err()
}

func (s settings) check(f *form.Form, seconds int) {
	if len(s.subject) > 200 || !contact.MatchString(s.subject) {
		f.Fault("/config/subject", "invalid_url", "must be mailto: and an email address, or an https:// URL, of your website")
	}
	if s.ttl < 0 || s.ttl > mostTTL {
		f.Fault("/config/ttl_seconds", "out_of_range", "must be from 0 to 2419200")
	}
	if !slices.Contains(urgencies, s.urgency) {
		f.Fault("/config/urgency", "invalid_choice", "must be very-low, low, normal or high")
	}
	wire.CheckNumbers(f, s.most, seconds)
}

// keys reads the pair of VAPID keys. The public one is what browsers subscribe with.
func keys(f *form.Form, public, private string) es256.Key {
	raw, err := decode(private)
	key, ok := es256.Parse(raw)
	if err != nil || !ok {
		f.Fault("/secrets/vapid_private_key", "invalid_key", "must be the base64url of the 32 bytes of a private key of P-256")
		return key
	}
	if point, err := decode(public); err != nil || string(point) != string(key.Public()) {
		f.Fault("/config/vapid_public_key", "invalid_key", "must be the base64url of the public key of vapid_private_key")
	}
	return key
}

// decode reads base64url, and base64 as some tools write it.
func decode(text string) ([]byte, error) {
	text = strings.NewReplacer("+", "-", "/", "_").Replace(strings.TrimRight(text, "="))
	return base64.RawURLEncoding.DecodeString(text) //nolint:wrapcheck // the caller names the text
}

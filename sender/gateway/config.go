package gateway

import (
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"lemma"
	"lemma/dial"
	"lemma/sender/form"
	"lemma/sender/wire"
	"lemma/signing"
)

// settings are an account's config and secrets, checked, defaults filled in.
type settings struct {
	url                    *url.URL
	headers, secretHeaders map[string]string
	key                    []byte // signs
	webhookKey             []byte // checks the signatures of webhooks; nil: none are received
	most                   int    // requests at a time
	timeout                time.Duration
	responses              responses
}

const (
	defaultTimeout = 30
	mostHeaders    = 20
	mostMapped     = 50 // statuses or values
)

func parse(config, secrets json.RawMessage, o wire.Operator) (settings, error) {
	f := form.Form{Noun: "an HTTP provider"}
	s := settings{most: wire.DefaultMost, responses: responses{id: "/id", failure: "/error"}}
	seconds, to, secret, webhook := defaultTimeout, "", "", ""
	var mapping json.RawMessage
	f.Object("/config", config, map[string]any{"url": &to, "headers": &s.headers, "responses": &mapping,
		"max_requests": &s.most, "timeout_seconds": &seconds})
	f.Object("/secrets", secrets, map[string]any{"signing_secret": &secret, "headers": &s.secretHeaders, "webhook_secret": &webhook})
	s.responses.read(&f, mapping)
	s.timeout = time.Duration(seconds) * time.Second
	if f.OK() {
		s.url = target(&f, to, o)
		s.key = key(&f, "/secrets/signing_secret", secret)
		if webhook != "" {
			s.webhookKey = key(&f, "/secrets/webhook_secret", webhook)
		}
		wire.CheckNumbers(&f, s.most, seconds)
		checkHeaders(&f, "/config/headers", s.headers)
		checkHeaders(&f, "/secrets/headers", s.secretHeaders)
		s.responses.check(&f)
	}
	return s, f.Err()
}

func target(f *form.Form, text string, o wire.Operator) *url.URL {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || !form.IsHost(u.Hostname()) || u.User != nil || u.Fragment != "" || u.Opaque != "" || len(text) > 2000,
		u.Scheme != "https" && (u.Scheme != "http" || !o.AllowPrivate):
		f.Fault("/config/url", "invalid_url", "must be an https:// URL without user or fragment")
	case !(dial.Dialer{AllowPrivate: o.AllowPrivate}).Plausible(u.Hostname()):
		f.Fault("/config/url", "forbidden_address",
			"must not be a private or reserved address; only the operator can allow private ones (LEMMA_ALLOW_PRIVATE_PROVIDERS)")
	}
	return u
}

func key(f *form.Form, at, secret string) []byte {
	k, ok := signing.Key(secret)
	if !ok {
		f.Fault(at, "invalid_secret", "must be whsec_ and the base64 of 24 to 64 random bytes")
	}
	return k
}

// reserved are the headers that a request has already, or that change how it is read.
var reserved = []string{"connection", "content-encoding", "content-length", "content-type", "expect", "host", "keep-alive",
	"proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "user-agent"}

func checkHeaders(f *form.Form, at string, headers map[string]string) {
	if len(headers) > mostHeaders {
		f.Fault(at, "too_many", "must be at most 20 headers")
	}
	for name, value := range headers {
		lower := strings.ToLower(name)
		switch {
		case !httpguts.ValidHeaderFieldName(name) || len(name) > 100:
			f.Fault(at+lemma.Pointer(name), "header_name", "must be a name of an HTTP header")
		case slices.Contains(reserved, lower) || strings.HasPrefix(lower, "webhook-"):
			f.Fault(at+lemma.Pointer(name), "not_reserved", "must not be a header that Lemma writes itself")
		case !httpguts.ValidHeaderFieldValue(value) || len(value) > 4000:
			f.Fault(at+lemma.Pointer(name), "single_line", "must be one line of at most 4000 bytes")
		}
	}
}

// Moves returns the URL when its scheme or host changes: the secret headers are sent
// there, and the requests that the secret signs.
var Moves = wire.Moves("url", parse, func(old, next settings) bool {
	return old.url != nil && next.url != nil && old.url.Scheme == next.url.Scheme && wire.HostOf(old.url) == wire.HostOf(next.url)
})

// Warnings are about requests that can be read on their way.
func Warnings(config json.RawMessage) []string {
	s, _ := parse(config, nil, wire.Operator{AllowPrivate: true}) // Check reports its faults
	if s.url == nil || s.url.Scheme != "http" {
		return nil
	}
	return []string{"messages are not encrypted on their way to the service; use https"}
}

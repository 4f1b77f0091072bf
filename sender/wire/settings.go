package wire

import (
	"encoding/json"
	"net/url"
	"strings"
	"time"

	"lemma/dial"
	"lemma/sender"
	"lemma/sender/form"
)

// MostRequests is the largest number of requests at a time that an account may set.
const MostRequests = 256

const mostTimeout = 60 // seconds; well within a lease

// CheckNumbers checks max_requests and timeout_seconds of a config.
func CheckNumbers(f *form.Form, requests, seconds int) {
	if requests < 1 || requests > MostRequests {
		f.Fault("/config/max_requests", "out_of_range", "must be from 1 to 256")
	}
	if seconds < 1 || seconds > mostTimeout {
		f.Fault("/config/timeout_seconds", "out_of_range", "must be from 1 to 60")
	}
}

// Parser reads the settings of a kind.
type Parser[S any] func(config, secrets json.RawMessage, o Operator) (S, error)

// Check is the check of a kind with these settings.
func Check[S any](o Operator, parse Parser[S]) func(config, secrets json.RawMessage) error {
	return func(config, secrets json.RawMessage) error {
		_, err := parse(config, secrets, o)
		return err
	}
}

// Moves is the Moves of a kind that sends its secrets to the server in a member of config.
// stays reports whether a change leaves them at the same server.
func Moves[S any](member string, parse Parser[S], stays func(old, next S) bool) func(before, after, secrets json.RawMessage) []string {
	return func(before, after, secrets json.RawMessage) []string {
		old, _ := parse(before, secrets, Operator{AllowPrivate: true}) // Check reports its faults
		next, _ := parse(after, secrets, Operator{AllowPrivate: true})
		if stays(old, next) {
			return nil
		}
		return []string{member}
	}
}

// HostOf is the host of a URL, with its port, in lower case; empty for nil.
func HostOf(u *url.URL) string {
	if u == nil {
		return ""
	}
	return strings.ToLower(u.Host)
}

// Options are those of an account's client, with the timeout and the requests at a time of
// its settings. The program may allow a call less time.
func (o Operator) Options(a sender.Account, timeout time.Duration, most int) Options {
	if a.CallTimeout > 0 {
		timeout = min(timeout, a.CallTimeout)
	}
	return Options{Operator: o, Workspace: a.WorkspaceID, Provider: a.ProviderID, Timeout: timeout, Most: most, Trace: a.Trace,
		Redact: a.Redact}
}

// Server reads the URL of a server from the settings: https and a host, without a path.
func (o Operator) Server(f *form.Form, pointer, text string) *url.URL {
	u := o.Endpoint(f, pointer, text)
	if strings.Trim(u.Path, "/") != "" {
		f.Fault(pointer, "invalid_url", "must be https:// and a host, without a path")
	}
	return &url.URL{Scheme: u.Scheme, Host: u.Host}
}

// Endpoint reads the URL of requests from the settings: https, a host and a path.
func (o Operator) Endpoint(f *form.Form, pointer, text string) *url.URL {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "https" || u.Opaque != "" || !form.IsHost(u.Hostname()) || u.User != nil || u.RawQuery != "" ||
		u.Fragment != "":
		f.Fault(pointer, "invalid_url", "must be an https:// URL without user, query and fragment")
		return &url.URL{}
	case !(dial.Dialer{AllowPrivate: o.AllowPrivate}).Plausible(u.Hostname()):
		f.Fault(pointer, "forbidden_address",
			"must not be a private or reserved address; only the operator can allow private ones (LEMMA_ALLOW_PRIVATE_PROVIDERS)")
	}
	return u
}

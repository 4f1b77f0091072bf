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

// Check is the check of a kind whose settings are read by parse.
func Check[S any](o Operator, parse func(config, secrets json.RawMessage, o Operator) (S, error),
) func(config, secrets json.RawMessage) error {
	return func(config, secrets json.RawMessage) error {
		_, err := parse(config, secrets, o)
		return err
	}
}

// Options are those of an account's client, with the timeout and the requests at a time of
// its settings. The program may allow a call less time.
func (o Operator) Options(a sender.Account, timeout time.Duration, most int) Options {
	if a.CallTimeout > 0 {
		timeout = min(timeout, a.CallTimeout)
	}
	return Options{Operator: o, Provider: a.ProviderID, Timeout: timeout, Most: most, Trace: a.Trace}
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

package twilio

import (
	"context"
	"crypto/hmac"
	"crypto/sha1" //nolint:gosec // Twilio signs with HMAC-SHA1.
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"lemma/events"
	"lemma/sender"
	"lemma/sender/wire"
)

// mostParameters bounds the parameters of a request. Twilio sends some 20.
const mostParameters = 500

// receiver reads status callbacks, and messages of recipients.
type receiver struct{ account, authToken string }

// receive makes the receiver of an account, also while the process has no public URL: the
// result is stored with the provider, and the process may get one later.
func receive(a sender.Account, o wire.Operator) (sender.Receiver, error) {
	s, err := parse(a.Config, a.Secrets, o)
	switch {
	case err != nil:
		return nil, err
	case s.authToken == "":
		return nil, fmt.Errorf("no auth_token, so no callbacks are requested: %w", sender.ErrNoReceiver)
	}
	return receiver{s.account, s.authToken}, nil
}

// Receive is part of sender.Receiver.
func (r receiver) Receive(_ context.Context, w sender.WebhookRequest) ([]events.Report, error) {
	if err := sender.CheckSize(w.Body); err != nil {
		return nil, err
	}
	called, err := url.Parse(w.URLs[0])
	if err != nil {
		return nil, fmt.Errorf("the URL cannot be read: %w", sender.ErrUnreadable)
	}
	if called.Query().Has("bodySHA256") {
		return nil, r.checkBody(w, called)
	}
	form, err := url.ParseQuery(string(w.Body))
	if err != nil || len(form) > mostParameters {
		return nil, fmt.Errorf("the parameters cannot be read: %w", sender.ErrUnreadable)
	}
	if !r.signed(w, form) {
		return nil, sender.ErrForged
	}
	if form.Get("AccountSid") != r.account {
		return nil, fmt.Errorf("of another account of Twilio: %w", sender.ErrForeign)
	}
	if form.Get("MessageStatus") != "" {
		return statusReports(called.Query(), form, w)
	}
	return messageReports(form, w.At)
}

// checkBody checks a request whose body is not a form. None of them is about a message.
func (r receiver) checkBody(w sender.WebhookRequest, called *url.URL) error {
	sum := sha256.Sum256(w.Body)
	given, err := hex.DecodeString(called.Query().Get("bodySHA256"))
	if err != nil || !hmac.Equal(given, sum[:]) || !r.signed(w, nil) {
		return sender.ErrForged
	}
	return fmt.Errorf("not a form: %w", sender.ErrUnreadable)
}

// signed reports that the header X-Twilio-Signature is right. Twilio signs the URL that it was
// given with the message, with or without its port.
func (r receiver) signed(w sender.WebhookRequest, form url.Values) bool {
	given, err := base64.StdEncoding.DecodeString(w.Header.Get("X-Twilio-Signature"))
	if err != nil || len(given) == 0 {
		return false
	}
	return slices.ContainsFunc(w.URLs, func(text string) bool {
		return slices.ContainsFunc(spellings(text), func(text string) bool {
			return hmac.Equal(given, signature(r.authToken, text, form))
		})
	})
}

// spellings are the URL as it is, and with its other spelling of the port.
func spellings(text string) []string {
	called, err := url.Parse(text)
	if err != nil {
		return nil
	}
	host := called.Host
	switch {
	case called.Port() != "":
		host = strings.TrimSuffix(host, ":"+called.Port())
	case called.Scheme == "https":
		host += ":443"
	default:
		host += ":80"
	}
	return []string{text, strings.Replace(text, called.Scheme+"://"+called.Host, called.Scheme+"://"+host, 1)}
}

// signature is HMAC-SHA1 of the URL and the sorted parameters.
func signature(authToken, called string, form url.Values) []byte {
	mac := hmac.New(sha1.New, []byte(authToken))
	mac.Write([]byte(called))
	names := make([]string, 0, len(form))
	for name := range form {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		values := slices.Clone(form[name])
		slices.Sort(values)
		for _, value := range slices.Compact(values) {
			mac.Write([]byte(name + value))
		}
	}
	return mac.Sum(nil)
}

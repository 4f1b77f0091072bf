package smtp

import (
	"encoding/json"
	"errors"

	"lemma"
	"lemma/sender"
	"lemma/sender/dsn"
	"lemma/sender/esp"
	"lemma/sender/form"
	"lemma/sender/gateway"
	"lemma/sender/mime"
	"lemma/sender/report"
	"lemma/signing"
)

// bounceMails is the format of reports by mail: delivery status notifications and
// complaints.
const bounceMails = "dsn"

// generic is Lemma's own format, for servers of the customer.
const generic = "generic"

var errSigning = errors.New("must be whsec_ and the base64 of 24 to 64 random bytes")

// receiver makes the receiver of an account.
func receiver(config, secrets json.RawMessage) (sender.Receiver, error) {
	s, err := parse(config, secrets)
	switch {
	case err != nil:
		return nil, err
	case s.receiver == nil:
		return nil, sender.ErrNoReceiver
	}
	return s.receiver, nil
}

// reports reads what the account reports later, and where.
func (f *settingsForm) reports(s *settings, webhooks json.RawMessage, secret string) {
	if s.returnPath != "" && !mime.IsMailbox(s.returnPath) {
		f.Fault("/config/return_path", "address", "must be a plain email address")
	}
	if !form.Present(webhooks) {
		if secret != "" {
			f.Fault("/config/webhooks", "required", "a secret of webhooks needs their format")
		}
		return
	}
	var format, key string
	f.Object("/config/webhooks", webhooks, map[string]any{"format": &format, "public_key": &key})
	switch service := esp.Format(format); service {
	case esp.Postmark, esp.Mailgun, esp.SendGrid:
		var err error
		s.receiver, err = esp.New(service, esp.Keys{Secret: secret, PublicKey: key})
		s.own.Lines = service.AppendHeader
		f.key(err)
	case bounceMails:
		if len(secret) < leastSecret || len(secret) > mostSecret {
			f.key(esp.ErrSecret)
		}
		s.own.Key = report.Key(secret)
		s.receiver = dsn.New(s.own.Key)
	case generic:
		key, ok := signing.Key(secret)
		if !ok {
			f.key(errSigning)
		}
		s.receiver = gateway.NewReceiver(key, lemma.Email)
	default:
		f.Fault("/config/webhooks/format", "invalid_choice", "must be postmark, mailgun, sendgrid, generic or dsn")
	}
}

// The length of the secret that proves Message-IDs.
const (
	leastSecret = 16
	mostSecret  = 200
)

func (f *settingsForm) key(err error) {
	switch {
	case errors.Is(err, esp.ErrPublicKey):
		f.Fault("/config/webhooks/public_key", "invalid_key", err.Error())
	case err != nil:
		f.Fault("/secrets/webhook_secret", "invalid_secret", err.Error())
	}
}

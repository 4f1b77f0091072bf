package server

import (
	"encoding/json"
	"strings"

	"lemma"
	"lemma/api"
	"lemma/dial"
	"lemma/sender"
	"lemma/sender/apns"
	"lemma/sender/fcm"
	"lemma/sender/gateway"
	"lemma/sender/ses"
	"lemma/sender/smtp"
	"lemma/sender/twilio"
	"lemma/sender/webpush"
	"lemma/sender/wire"
)

// kindsOf returns the kinds of carriers that this program has. They share the bound of idle
// connections.
func kindsOf(o wire.Operator) carriers {
	o.Idle = dial.NewIdle(sender.MostIdle, sender.MostIdleOfWorkspace)
	return carriers{
		smtp.Kind(smtp.Options{AllowPrivate: o.AllowPrivate, ShowPrivate: o.ShowPrivate, Log: o.Log, Idle: o.Idle}),
		ses.Kind(o),
		fcm.Kind(o),
		apns.Kind(o),
		webpush.Kind(o),
		twilio.Kind(o),
		gateway.Kind(o),
	}
}

// AccountWarnings names what is insecure or missing in the configuration of a provider.
func AccountWarnings(kind string, config json.RawMessage) []string {
	return kindsOf(wire.Operator{}).warnings(kind, config)
}

// carriers are kinds of carriers, found by name.
type carriers []sender.Kind

func (k carriers) find(name string) sender.Kind {
	for _, kind := range k {
		if kind.Name == name {
			return kind
		}
	}
	return sender.Kind{}
}

func (k carriers) capabilities(kind string) api.Capabilities {
	return api.Capabilities(k.find(kind).Capabilities)
}

// check checks that a carrier can be opened with the account of a provider. Providers
// are saved only then.
func (k carriers) check(kind string, config, secrets json.RawMessage) error {
	found := k.find(kind)
	switch {
	case found.Name == "":
		return lemma.Fault("/kind", "unknown_kind", "must be a kind of provider: %s", k.names())
	case found.Check != nil:
		return found.Check(config, secrets)
	}
	return nil
}

// receives reports whether an account is configured to receive webhooks about
// accepted messages too.
func (k carriers) receives(kind string, channel lemma.Channel, config, secrets json.RawMessage) bool {
	receiver := k.find(kind).Receiver
	if receiver == nil {
		return false
	}
	made, err := receiver(sender.Account{Kind: kind, Channel: channel, Config: config, Secrets: secrets})
	_, failuresOnly := made.(sender.FailuresOnly)
	return err == nil && !failuresOnly
}

// channels are those that a kind carries; the first is the default.
func (k carriers) channels(kind string) []lemma.Channel { return k.find(kind).Carried() }

func (k carriers) names() string {
	names := make([]string, len(k))
	for i, kind := range k {
		names[i] = kind.Name
	}
	return strings.Join(names, ", ")
}

// moves names the changed fields that decide where a provider's secrets are sent.
func (k carriers) moves(kind string, before, after, secrets json.RawMessage) []string {
	if moves := k.find(kind).Moves; moves != nil {
		return moves(before, after, secrets)
	}
	return nil
}

func (k carriers) warnings(kind string, config json.RawMessage) []string {
	if warnings := k.find(kind).Warnings; warnings != nil {
		return warnings(config)
	}
	return nil
}

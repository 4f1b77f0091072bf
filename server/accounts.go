package server

import (
	"encoding/json"
	"slices"

	"lemma"
	"lemma/api"
	"lemma/providers"
	"lemma/sender"
	"lemma/sender/smtp"
)

// capabilitiesOf returns what each kind of carrier can do, by its name.
func capabilitiesOf(kinds []sender.Kind) func(string) api.Capabilities {
	known := map[string]api.Capabilities{}
	for _, k := range kinds {
		known[k.Name] = api.Capabilities(k.Capabilities)
	}
	return func(kind string) api.Capabilities { return known[kind] }
}

// checkAccount checks that one of the carriers can be opened with the account of a
// provider. Providers are saved only then.
func checkAccount(kinds []sender.Kind, o smtp.Options) providers.Check {
	return func(kind string, config, secret json.RawMessage) error {
		known := slices.ContainsFunc(kinds, func(k sender.Kind) bool { return k.Name == kind })
		switch {
		case !known:
			return lemma.Fault("/kind", "unknown_kind", "must be a kind of provider: smtp")
		case kind == "smtp":
			return smtp.Check(config, secret, o)
		}
		return nil
	}
}

// movedAccount names the changed fields that decide where a provider's secrets are
// sent; none for other kinds than smtp.
func movedAccount(kind string, before, after, secret json.RawMessage) []string {
	if kind != "smtp" {
		return nil
	}
	return smtp.Moves(before, after, secret)
}

// AccountWarnings names what is insecure in the configuration of a provider; nothing
// for other kinds than smtp.
func AccountWarnings(kind string, config json.RawMessage) []string {
	if kind != "smtp" {
		return nil
	}
	return smtp.Warnings(config)
}

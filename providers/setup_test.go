package providers_test

import (
	"encoding/json"
	"testing"

	"github.com/google/uuid"

	"lemma"
	"lemma/pgtest"
	"lemma/providers"
)

type bundle struct {
	pgtest.Shop
	accounts *providers.Providers
}

// setup is a fresh database with one workspace. The kinds are "smtp", which
// needs a host, and nothing else.
func setup(t testing.TB) bundle {
	t.Helper()
	s := pgtest.NewShop(t)
	accounts := providers.New(s.Pool, pgtest.Box(t), checkKind)
	accounts.OnMove(moves)
	return bundle{s, accounts}
}

func checkKind(kind string, config, _ json.RawMessage) error {
	if kind != "smtp" {
		return lemma.Fault("/kind", "unknown", "must be a known kind, not %q", kind)
	}
	var c struct{ Host string }
	if json.Unmarshal(config, &c) != nil || c.Host == "" {
		return lemma.Fault("/config/host", "required", "must have a host")
	}
	return nil
}

// moves returns host if it differs, since it decides where secrets are sent.
func moves(_ string, before, after, _ json.RawMessage) []string {
	var old, now struct{ Host string }
	if json.Unmarshal(before, &old) == nil && json.Unmarshal(after, &now) == nil && old == now {
		return nil
	}
	return []string{"host"}
}

// create makes a provider with defaults, changed by change.
func (b bundle) create(t testing.TB, change func(*providers.NewProvider)) providers.Provider {
	t.Helper()
	n := providers.NewProvider{ID: lemma.NewID(), Name: "mail " + uuid.NewString(), Kind: "smtp",
		Config: json.RawMessage(`{"host":"mail.example.com"}`), Secrets: json.RawMessage(`{"password":"hunter2"}`)}
	if change != nil {
		change(&n)
	}
	made, err := b.accounts.Create(t.Context(), b.Workspace, n)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

package providers_test

import (
	"encoding/json"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/pgtest"
	"lemma/providers"
	"lemma/secrets"
)

type bundle struct {
	pool     *pgxpool.Pool
	accounts *providers.Providers
	ws       uuid.UUID
}

// setup is a fresh database with one workspace. The kinds are "smtp", which
// needs a host, and nothing else.
func setup(t testing.TB) bundle {
	t.Helper()
	pool := pgtest.DB(t)
	accounts := providers.New(pool, newBox(t), checkKind)
	accounts.OnMove(moves)
	return bundle{pool, accounts, pgtest.Workspace(t, pool)}
}

func newBox(t testing.TB) *secrets.Box {
	t.Helper()
	box, err := secrets.ParseKeys(secrets.NewKey())
	if err != nil {
		t.Fatal(err)
	}
	return box
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

// moves: a host decides where secrets are sent.
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
	made, err := b.accounts.Create(t.Context(), b.ws, n)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

package audience

import (
	"testing"

	"lemma"
	"lemma/audience/wire"
)

// TestClientIgnoresItsSurroundings sets what libpq would read.
func TestClientIgnoresItsSurroundings(t *testing.T) {
	for name, value := range map[string]string{"PGHOST": "127.0.0.1", "PGUSER": "evil", "PGPASSWORD": "evil", "PGOPTIONS": "-c x=y",
		"PGSSLMODE":     "verify-full",
		"PGSSLROOTCERT": "/nowhere", "PGSSLCERT": "/nowhere", "PGSSLKEY": "/nowhere", "PGAPPNAME": "evil", "PGTZ": "evil",
		"PGREQUIREAUTH": "none"} {
		t.Setenv(name, value)
	}
	target, err := wire.Parse(Postgres, "postgres://u@db.example.com/shop?sslmode=require", wire.Rules{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(nil, nil, Options{}).pgConfig(target)
	if err != nil {
		t.Fatal(err)
	}
	if c.Host != "db.example.com" || c.User != "u" || c.Password != "" || len(c.RuntimeParams) != 2 || c.RequireAuth != "" ||
		c.TLSConfig == nil || len(c.Fallbacks) != 0 {
		t.Errorf("%+v", c)
	}
}

// A new DSN replaces the whole old one: no part of it, such as
// its password, is sent to the new server.
func TestAnotherDSNKeepsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	ctx := t.Context()
	made, err := b.CreateSource(ctx, b.Workspace, NewSource{ID: lemma.NewID(), Name: "shop", Kind: Postgres,
		DSN: "postgres://reader:hunter2@db.shop.example:5432/shop?sslmode=verify-full"})
	b.Must(err)
	other := "postgres://reader@db.evil.example:5432/shop"
	if _, err := b.UpdateSource(ctx, b.Workspace, made.ID, nil, SourcePatch{DSN: &other}); err != nil {
		t.Fatal(err)
	}
	opened, err := b.opened(ctx, b.Workspace, made.ID)
	if err != nil || opened.target.Password != "" || opened.target.TLS != "prefer" || opened.target.Host != "db.evil.example" {
		t.Errorf("%+v, %v", opened.target, err)
	}
}

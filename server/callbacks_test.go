package server

import (
	"encoding/json"
	"log/slog"
	"testing"

	"lemma"
	"lemma/pgtest"
	"lemma/pgtest/shop"
	"lemma/providers"
)

// Messages over Twilio name a status callback when carriers reach the process.
func TestCarriersCallThePublicURL(t *testing.T) {
	t.Parallel()
	f := shop.New(pgtest.NewShop(t, `create table people (id text)`), shop.Local, nil)
	for at, receives := range map[string]bool{publicURL: true, "": false} {
		s, err := New(Deps{Pool: f.Pool, Box: f.Box, Log: slog.New(slog.DiscardHandler)}, Config{PublicURL: at})
		f.Must(err)
		p, err := s.Providers.Create(t.Context(), f.Workspace, providers.NewProvider{ID: lemma.NewID(), Name: "SMS of " + at, Kind: "twilio",
			Config:  json.RawMessage(`{"account_sid":"AC0123456789abcdef0123456789abcdef","from":"+4930123456"}`),
			Secrets: json.RawMessage(`{"auth_token":"0123456789abcdef0123456789abcdef"}`)})
		f.Must(err)
		if p.Receives != receives {
			t.Errorf("public URL %q: receives %v", at, p.Receives)
		}
	}
}

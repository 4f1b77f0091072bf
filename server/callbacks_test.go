package server

import (
	"log/slog"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"lemma"
	"lemma/pgtest"
	"lemma/pgtest/shop"
	"lemma/sender/sendertest"
	"lemma/sender/wire"
	"lemma/workspaces"
)

// Messages over Twilio name a status callback when carriers reach the installation, also if the
// provider was created before, and by a process without the setting.
func TestTwilioCallsThePublicURL(t *testing.T) {
	t.Parallel()
	carrier := sendertest.ServeHTTPS(t, true, func(sendertest.Received) sendertest.Reply {
		return sendertest.Reply{Status: 201, Body: `{"sid":"SM0123456789abcdef0123456789abcdef","status":"accepted"}`}
	})
	f := shop.New(pgtest.NewShop(t, `create table people (id text)`), shop.Local, nil)
	var provider struct {
		ID           string
		Capabilities struct{ Events bool }
	}
	for i, at := range []string{"", publicURL, ""} {
		s, err := New(Deps{Pool: f.Pool, Box: f.Box, Log: slog.New(slog.DiscardHandler)},
			Config{PublicURL: at, Carriers: wire.Operator{AllowPrivate: true, Roots: carrier.Roots}})
		f.Must(err)
		f.Must(s.Settings.Sync(t.Context()))
		_, token, err := s.Workspaces.CreateKey(t.Context(), f.Workspace,
			workspaces.NewKey{ID: lemma.NewID(), Name: strconv.Itoa(i), Scopes: []string{workspaces.Admin}})
		f.Must(err)
		if provider.ID == "" {
			callAPI(t, s.API, token, "POST", "/v1/providers", map[string]any{"name": "SMS", "kind": "twilio",
				"config":  map[string]any{"account_sid": "AC0123456789abcdef0123456789abcdef", "from": "+4930123456", "endpoint": carrier.URL},
				"secrets": map[string]any{"auth_token": "0123456789abcdef0123456789abcdef"}}, &provider)
		}
		callAPI(t, s.API, token, "GET", "/v1/providers/"+provider.ID, nil, &provider)
		callAPI(t, s.API, token, "POST", "/v1/providers/"+provider.ID+"/test", map[string]any{"to": "+4930123457"}, &struct{}{})
		all := carrier.Received(func(sendertest.Received) bool { return true })
		form, _ := url.ParseQuery(string(all[len(all)-1].Body))
		reached := i > 0
		if provider.Capabilities.Events != reached || strings.HasPrefix(form.Get("StatusCallback"), publicURL+"/") != reached {
			t.Errorf("process %d with the public URL %q: %+v, %v", i, at, provider, form)
		}
	}
}

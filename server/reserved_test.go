package server

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"lemma"
	"lemma/pgtest"
	"lemma/secrets"
	"lemma/workspaces"
)

// Authentication and readiness do not wait for the connections of requests and workers.
func TestAuthenticationHasConnectionsOfItsOwn(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	reserved, err := OpenReserved(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(reserved.Close)
	box, err := secrets.ParseKeys(secrets.NewKey())
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Deps{Pool: pool, Reserved: reserved, Box: box, Log: slog.New(slog.DiscardHandler)}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	_, token, err := s.Workspaces.CreateKey(t.Context(), pgtest.Workspace(t, pool),
		workspaces.NewKey{ID: lemma.NewID(), Name: "reader", Scopes: []string{"audiences:read"}})
	if err != nil {
		t.Fatal(err)
	}
	for range pool.Config().MaxConns {
		c, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Release()
	}
	for path, want := range map[string]int{"/readyz": http.StatusOK, "/v1/flows": http.StatusForbidden} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		r := httptest.NewRequestWithContext(ctx, "GET", path, nil)
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		s.API.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

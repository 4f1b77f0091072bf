package server

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"lemma"
	"lemma/pgtest"
	"lemma/workspaces"
)

// Authentication and readiness do not wait for the connections of requests and workers.
func TestAuthenticationHasConnectionsOfItsOwn(t *testing.T) {
	t.Parallel()
	b := pgtest.NewShop(t)
	reserved, err := OpenReserved(t.Context(), b.Pool)
	b.Must(err)
	t.Cleanup(reserved.Close)
	s, err := New(Deps{Pool: b.Pool, Reserved: reserved, Box: pgtest.Box(t), Log: slog.New(slog.DiscardHandler)}, Config{})
	b.Must(err)
	_, token, err := s.Workspaces.CreateKey(t.Context(), b.Workspace,
		workspaces.NewKey{ID: lemma.NewID(), Name: "reader", Scopes: []string{"audiences:read"}})
	b.Must(err)
	for range b.Pool.Config().MaxConns {
		c, err := b.Pool.Acquire(t.Context())
		b.Must(err)
		defer c.Release()
	}
	for path, want := range map[string]int{"/readyz": http.StatusOK, "/v1/flows": http.StatusForbidden} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
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

// Checks of /readyz need no key. Many of them take one of the connections of authentication.
func TestChecksOfReadinessAreShared(t *testing.T) {
	t.Parallel()
	b := pgtest.NewShop(t)
	reserved, err := OpenReserved(t.Context(), b.Pool)
	b.Must(err)
	t.Cleanup(reserved.Close)
	s, err := New(Deps{Pool: b.Pool, Reserved: reserved, Box: pgtest.Box(t), Log: slog.New(slog.DiscardHandler)}, Config{})
	b.Must(err)
	lock, err := b.Pool.Begin(t.Context())
	b.Must(err)
	_, err = lock.Exec(t.Context(), `lock table goose_db_version`)
	b.Must(err)
	var begun, checked sync.WaitGroup
	for range 3 * reserved.Config().MaxConns {
		begun.Add(1)
		checked.Go(func() {
			begun.Done()
			if err := s.ready(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	begun.Wait()
	b.WaitForLocks(1)
	if n := reserved.Stat().AcquiredConns(); n != 1 {
		t.Errorf("%d connections check", n)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if _, err := s.Workspaces.Authenticate(ctx, "lk_"); lemma.KindOf(err) != lemma.Unauthenticated {
		t.Error(err)
	}
	b.Must(lock.Rollback(t.Context()))
	checked.Wait()
}

// docs/guides/run-in-production.md and docs/reference/settings.md have the connections of a process.
func TestConnectionsOfAProcess(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		config Config
		want   int32
	}{{Config{}, 44}, {Config{SendWorkers: 32, DirectWorkers: 1}, 53}} {
		c.config.DatabaseURL = pgtest.DSN(pgtest.DB(t))
		pool, err := OpenPool(t.Context(), c.config)
		if err != nil {
			t.Fatal(err)
		}
		if got := pool.Config().MaxConns; got != c.want {
			t.Errorf("%d connections, want %d", got, c.want)
		}
		pool.Close()
	}
}

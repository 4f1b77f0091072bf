package server

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"lemma/links"
	"lemma/pgtest"
)

// Requests with links that nobody has signed fill no log, whatever fails: neither those of clients
// that hang up nor others.
func TestStrangersDoNotFillTheLog(t *testing.T) {
	t.Parallel()
	log, pool := &lockedBuffer{}, pgtest.DB(t)
	s, err := New(Deps{Pool: pool, Box: pgtest.Box(t), Log: slog.New(slog.NewTextHandler(log, nil))}, Config{})
	must(t, err)
	api := s.newAPI()
	request := func(ctx context.Context, path string, purpose links.Purpose) {
		token := make([]byte, 81)
		_, _ = rand.Read(token)
		token[0] = byte(purpose)
		w := httptest.NewRecorder()
		api.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, path+base64.RawURLEncoding.EncodeToString(token), nil))
		if w.Code != http.StatusServiceUnavailable {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
	paths := map[string]links.Purpose{"/o/": links.Open, "/c/": links.Click, "/u/": links.Unsubscribe, "/downloads/": links.Download}

	locked, err := pool.Begin(t.Context())
	must(t, err)
	_, err = locked.Exec(t.Context(), "lock table link_keys") // the database is slow
	must(t, err)
	gone, hangUp := context.WithCancel(t.Context())
	hangUp()
	var all sync.WaitGroup
	for path, purpose := range paths {
		all.Go(func() { request(gone, path, purpose) })
	}
	all.Wait()
	must(t, locked.Rollback(t.Context()))
	if strings.Contains(log.text(), "level=ERROR") {
		t.Errorf("a client that hangs up is an error: %s", log.text())
	}

	const most = 300 // lines in a minute
	pgtest.Exec(t, pool, "drop table link_keys")
	for path, purpose := range paths {
		before := strings.Count(log.text(), "level=ERROR")
		for range most/len(paths) + 5 {
			request(t.Context(), path, purpose)
		}
		if strings.Count(log.text(), "level=ERROR") == before {
			t.Errorf("%s: no error is logged", path)
		}
	}
	for _, what := range []string{"level=ERROR", "msg=request"} {
		if n := strings.Count(log.text(), what); n != most {
			t.Errorf("%d lines of %s", n, what)
		}
	}
}

package server

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"lemma/links"
	"lemma/pgtest"
)

// Requests with links that nobody has signed fill no log, whatever fails: neither of clients that
// end them at once nor of others.
func TestStrangersDoNotFillTheLog(t *testing.T) {
	t.Parallel()
	log, pool := &lockedBuffer{}, pgtest.DB(t)
	s, err := New(Deps{Pool: pool, Box: pgtest.Box(t), Log: slog.New(slog.NewTextHandler(log, nil))}, Config{})
	must(t, err)
	pgtest.Exec(t, pool, "drop table link_keys") // a fault of the server
	api := s.newAPI()
	ended, end := context.WithCancel(t.Context())
	end()
	const most = 300 // lines in a minute
	for _, ctx := range []context.Context{ended, t.Context()} {
		for path, purpose := range map[string]links.Purpose{"/o/": links.Open, "/c/": links.Click, "/u/": links.Unsubscribe,
			"/downloads/": links.Download} {
			before := strings.Count(log.text(), "level=ERROR")
			for range 80 {
				token := make([]byte, 81)
				_, _ = rand.Read(token)
				token[0] = byte(purpose)
				r := httptest.NewRequestWithContext(ctx, http.MethodGet, path+base64.RawURLEncoding.EncodeToString(token), nil)
				w := httptest.NewRecorder()
				api.ServeHTTP(w, r)
				if w.Code != http.StatusServiceUnavailable {
					t.Fatalf("%s: %d", path, w.Code)
				}
			}
			if lines := strings.Count(log.text(), "level=ERROR") - before; (lines == 0) != (ctx == ended) {
				t.Errorf("%s: %d errors are logged, ended %v", path, lines, ctx == ended)
			}
		}
	}
	if n := strings.Count(log.text(), "level=ERROR"); n != most {
		t.Errorf("%d errors are logged", n)
	}
	if n := strings.Count(log.text(), "msg=request"); n != most {
		t.Errorf("%d requests are logged", n)
	}
}

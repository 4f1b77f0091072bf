package main

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// Errors are reported only with LEMMA_SENTRY_DSN, which is a secret.
func TestErrorsAreReportedToSentry(t *testing.T) {
	t.Parallel()
	var reports atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), "a batch failed") {
			reports.Add(1)
		}
	}))
	t.Cleanup(s.Close)
	dsn := strings.Replace(s.URL, "http://", "http://public@", 1) + "/7"
	for want, configured := range []string{"", dsn} {
		log, flush, err := Config{SentryDSN: configured}.reported(slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		log.Error("a batch failed")
		flush()
		if got := int(reports.Load()); got != want {
			t.Errorf("DSN %q: %d reports, want %d", configured, got, want)
		}
	}
	if out := mustRun(t, []string{"LEMMA_SENTRY_DSN=" + dsn}, "config"); strings.Contains(out, "public") {
		t.Errorf("the DSN is shown: %s", out)
	}
	if _, err := lemmaWith(t, []string{"LEMMA_SENTRY_DSN=https://hunter2@/x"}, "config"); err == nil ||
		!strings.Contains(err.Error(), "LEMMA_SENTRY_DSN") || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a wrong DSN: %v", err)
	}
}

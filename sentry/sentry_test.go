package sentry

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"

	"lemma"
)

// counterpart is a service that speaks the envelopes of Sentry.
type counterpart struct {
	t   *testing.T
	url string

	mu     sync.Mutex
	bodies []string
	events []map[string]any
}

func open(t *testing.T) (*counterpart, *Reporter) {
	t.Helper()
	c := &counterpart{t: t}
	s := httptest.NewServer(c)
	t.Cleanup(s.Close)
	c.url = s.URL
	r, err := Open(Options{DSN: strings.Replace(s.URL, "http://", "http://public@", 1) + "/7"})
	if err != nil {
		t.Fatal(err)
	}
	return c, r
}

// ServeHTTP reads an envelope: its header, and items of a header and a payload.
func (c *counterpart) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/api/7/envelope/" || !strings.Contains(r.Header.Get("X-Sentry-Auth"), "sentry_key=public") {
		c.t.Errorf("%s %s %v", r.Method, r.URL, r.Header)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		c.t.Error(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bodies = append(c.bodies, string(body))
	lines := bufio.NewScanner(strings.NewReader(string(body)))
	lines.Buffer(nil, 1<<20)
	var header struct {
		EventID string `json:"event_id"`
	}
	var item struct{ Type string }
	if !lines.Scan() || json.Unmarshal(lines.Bytes(), &header) != nil || header.EventID == "" {
		c.t.Errorf("no envelope: %s", body)
	}
	for lines.Scan() {
		event := map[string]any{}
		if json.Unmarshal(lines.Bytes(), &item) != nil || !lines.Scan() || json.Unmarshal(lines.Bytes(), &event) != nil {
			c.t.Errorf("no item: %s", body)
		}
		if item.Type == "event" {
			c.events = append(c.events, event)
		}
	}
	_, _ = fmt.Fprintf(w, `{"id": %q}`, header.EventID)
}

// all are the events, after r has sent them.
func (c *counterpart) all(r *Reporter) []map[string]any {
	r.Flush()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.events
}

const secretText = `carrier says: anna@shop.example +4915100123456 "Dear Anna" postgres://app:hunter2@db/lemma?token=abc123 sk_live_9`

// secretsOf are the personal data and secrets of secretText.
var secretsOf = []string{"anna", "Anna", "4915100123456", "hunter2", "abc123", "sk_live", "carrier says"}

// A report has the message, the types and codes of an error, ids and numbers, and no text
// of which a part may be personal data or a secret.
func TestReportsHaveNoPersonalData(t *testing.T) {
	t.Parallel()
	c, r := open(t)
	log := slog.New(r.Handler(slog.DiscardHandler)).With("provider_id", "prv_01k9zq6r8h7x2m4n5p6q7r8s9t", "to", "anna@shop.example")
	log.Error("a batch failed", "batch_id", lemma.NewID(), "rows", 3, "reason", "server_error", "path", "/v1/x?email=anna@shop.example",
		"recipient_id", "anna", "customer_id", "4915100123456", "code", "Dear Anna", slog.Group("profile", "email", "anna@shop.example"),
		"error", fmt.Errorf("%s: %w", secretText, errors.Join(errors.New(secretText),
			&pgconn.PgError{Code: "23505", Message: secretText, Detail: secretText, ConstraintName: "attempts_pkey"})))
	log.WithGroup("anna").Error("in a group", "rows_anna", 3)
	all := c.all(r)
	if len(all) != 2 {
		t.Fatalf("%d reports", len(all))
	}
	for _, body := range c.bodies {
		for _, text := range secretsOf {
			if strings.Contains(body, text) {
				t.Errorf("%q is reported: %s", text, body)
			}
		}
	}
	tags, _ := all[0]["tags"].(map[string]any)
	id, _ := tags["batch_id"].(string)
	delete(tags, "batch_id")
	want := map[string]any{"provider_id": "prv_01k9zq6r8h7x2m4n5p6q7r8s9t", "rows": "3",
		"reason": "server_error", "constraint": "attempts_pkey"}
	if diff := cmp.Diff(want, tags); diff != "" || len(id) != 36 {
		t.Errorf("tags (-want +got), batch_id %q:\n%s", id, diff)
	}
	if all[0]["message"] != "a batch failed" || !strings.HasPrefix(fmt.Sprint(all[0]["release"]), "lemma") || all[0]["level"] != "error" {
		t.Errorf("%v", all[0])
	}
	exception, _ := json.Marshal(all[0]["exception"])
	if !strings.Contains(string(exception), "*pgconn.PgError SQLSTATE 23505") {
		t.Errorf("exception %s", exception)
	}
	for _, name := range []string{"user", "request", "modules", "contexts", "breadcrumbs"} {
		if given := all[0][name]; given != nil && fmt.Sprint(given) != "map[]" {
			t.Errorf("%s is reported: %v", name, given)
		}
	}
}

// Records below the level error are not reported.
func TestOnlyErrorsAreReported(t *testing.T) {
	t.Parallel()
	c, r := open(t)
	log := slog.New(r.Handler(slog.DiscardHandler))
	log.Info("working")
	log.Warn("a data source is slow")
	if all := c.all(r); len(all) != 0 {
		t.Errorf("%v", all)
	}
}

func failing(value any) error {
	return lemma.Recovered(func() error { panic(value) })
}

// A panic is reported with the functions, files and lines of its stack. Panics at one
// place are a group.
func TestPanics(t *testing.T) {
	t.Parallel()
	c, r := open(t)
	log := slog.New(r.Handler(slog.DiscardHandler))
	var none []int
	for range 2 {
		log.Error("a loop failed", "error", fmt.Errorf("run: %w", failing(secretText)))
	}
	log.Error("a loop failed", "error", lemma.Recovered(func() error { _ = none[len(none)+4]; return nil }))
	all := c.all(r)
	if len(all) != 2 {
		t.Fatalf("%d reports", len(all))
	}
	text, body := "", ""
	for i, event := range all {
		encoded, _ := json.Marshal(event["exception"])
		text += string(encoded)
		body += c.bodies[i]
	}
	for _, part := range []string{`"function":"failing"`, `"filename":"sentry_test.go"`, "*lemma.Panic string",
		"index out of range [4] with length 0"} {
		if !strings.Contains(text, part) {
			t.Errorf("%q is missing: %s", part, text)
		}
	}
	for _, part := range secretsOf {
		if strings.Contains(body, part) {
			t.Errorf("%q is reported: %s", part, body)
		}
	}
}

// Of equal errors one in a minute is reported, with the number of the others.
func TestEqualErrorsAreOneReport(t *testing.T) {
	t.Parallel()
	c, r := open(t)
	now := time.Now()
	r.limit = newLimit(func() time.Time { return now })
	log := slog.New(r.Handler(slog.DiscardHandler))
	for range 1000 {
		log.Error("a batch failed", "batch_id", lemma.NewID(), "error", errors.New(lemma.NewID().String()))
	}
	now = now.Add(time.Minute)
	log.Error("a batch failed")
	for i := range 100 {
		log.Error(fmt.Sprint("another ", i))
	}
	all := c.all(r)
	if len(all) != 1+perMinute {
		t.Errorf("%d reports", len(all))
	}
	first, _ := json.Marshal(all[0]["fingerprint"])
	second, _ := json.Marshal(all[1])
	if string(first) != `["a batch failed",""]` || !strings.Contains(string(second), `"left_out":"999"`) {
		t.Errorf("%s, then %s", first, second)
	}
}

// A service that does not answer holds up neither the log nor, for long, the end.
func TestAServiceThatHangs(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer s.Close()
	defer close(release)
	r, err := Open(Options{DSN: strings.Replace(s.URL, "http://", "http://public@", 1) + "/7"})
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	slog.New(r.Handler(slog.DiscardHandler)).Error("a batch failed")
	r.Flush()
	if took := time.Since(begun); took > callTimeout-time.Second { // what waits for the call takes callTimeout
		t.Errorf("a log and the end took %v", took)
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	if err := Check("https://public@sentry.example.com/7"); err != nil {
		t.Error(err)
	}
	for _, dsn := range []string{"sentry.example.com", "https://sentry.example.com/7", "https://hunter2@sentry.example.com", "ftp://a@b/1"} {
		if err := Check(dsn); !errors.Is(err, ErrDSN) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", dsn, err)
		}
	}
}

package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"lemma"
	"lemma/pgtest"
)

func TestRequestIDs(t *testing.T) {
	b := setup(t)
	for sent, kept := range map[string]bool{"abc-1.2_3": true, "": false, "a b": false, "a\"b": false,
		strings.Repeat("x", 65): false, "<script>": false} {
		got := b.do("GET", "/v1/no_such", nil, header("X-Request-Id", sent))
		id := got.header.Get("X-Request-Id")
		if (id == sent) != kept || !saneID.MatchString(id) || got.problem.RequestID != id {
			t.Errorf("%q: answered %q, in the body %q", sent, id, got.problem.RequestID)
		}
	}
}

// The access log has one line per request, with ids and no personal data.
func TestAccessLog(t *testing.T) {
	b := setup(t)
	w := b.world()
	b.do("GET", "/v1/notifications?campaign_id="+w.campaign+"&address=ada@shop.example", nil, header("X-Request-Id", "find-me")).is(200)
	b.do("GET", "/v1/campaigns/ada@shop.example", nil).is(404)
	b.do("GET", "/ada@shop.example", nil).is(404)
	log := b.log.String()
	for _, secret := range []string{"ada@shop.example", b.token, b.token[3:20], "pass-secret-word", b.DSN, "news@shop.example", "MKT-17"} {
		if strings.Contains(log, secret) {
			t.Errorf("%q is in the log", secret)
		}
	}
	for line := range strings.Lines(log) {
		if !strings.Contains(line, "find-me") {
			continue
		}
		var l object
		if err := json.Unmarshal([]byte(line), &l); err != nil || l["route"] != "/v1/notifications" || l["status"] != 200.0 ||
			l["workspace"] != lemma.FormatID(lemma.PrefixWorkspace, b.Workspace) || l["method"] != "GET" ||
			!strings.HasPrefix(l["key"].(string), "key_") {
			t.Errorf("the line is %s", line)
		}
		return
	}
	t.Error("no line for the request")
}

// An internal error is logged, and the answer has no detail of it.
func TestInternalErrorsAreNotShown(t *testing.T) {
	b := setup(t)
	b.Exec(`alter table templates rename to templates_gone`)
	got := b.do("GET", "/v1/templates", nil).is(500)
	for _, internal := range []string{"templates", "SQLSTATE", "relation", "pgx"} {
		if strings.Contains(string(got.body), internal) {
			t.Errorf("the answer contains %q: %s", internal, got.body)
		}
	}
	if got.problem.Code != "internal" || !strings.Contains(b.log.String(), "SQLSTATE") ||
		!strings.Contains(b.log.String(), got.problem.RequestID) {
		t.Errorf("answer %s, log %s", got.body, b.log)
	}
}

func TestPanic(t *testing.T) {
	b := setup(t, func(o *Options) {
		o.Metrics = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("the secret plan") })
	})
	w := httptest.NewRecorder()
	b.server.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	a := answered{t: t, what: "GET /metrics", status: w.Code, header: w.Header(), body: w.Body.Bytes()}
	a.is(500).holdToProblem()
	if strings.Contains(string(a.body), "secret plan") || !strings.Contains(b.log.String(), "the secret plan") {
		t.Errorf("answer %s, log %s", a.body, b.log)
	}
	defer func() {
		if recover() != http.ErrAbortHandler {
			t.Error("net/http's own panic was kept from it")
		}
	}()
	s := &server{Options: Options{}.withDefaults()}
	s.recover(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })).
		ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
}

// A request that takes too long is answered with an error that can be retried.
func TestTimeout(t *testing.T) {
	b := setup(t, func(o *Options) { o.Timeout = 50 * time.Millisecond })
	conn, err := b.Pool.Acquire(t.Context())
	b.Must(err)
	defer conn.Release()
	tx, err := conn.Begin(t.Context())
	b.Must(err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(t.Context(), `lock table templates in access exclusive mode`)
	b.Must(err)
	if got := b.do("GET", "/v1/templates", nil).is(503); got.problem.Code != "timeout" || got.header.Get("Retry-After") == "" {
		t.Errorf("got %s", got.body)
	}
}

func TestReadiness(t *testing.T) {
	ready := errors.New("index notifications_pkey is not valid on 10.0.0.5")
	b := setup(t, func(o *Options) { o.Ready = func(context.Context) error { return ready } })
	got := b.do("GET", "/readyz", nil, anonymous).is(503)
	if strings.Contains(string(got.body), "10.0.0.5") || !strings.Contains(b.log.String(), "10.0.0.5") {
		t.Errorf("answer %s, log %s", got.body, b.log)
	}
	b.do("GET", "/healthz", nil, anonymous).is(200)
	ready = nil
	b.do("GET", "/readyz", nil, anonymous).is(200)
}

// The page at /docs loads only from this server: it has no other address, and its
// Content-Security-Policy forbids others.
func TestDocs(t *testing.T) {
	b := setup(t)
	got := b.do("GET", "/docs", nil, header("Authorization", "")).is(200)
	page := string(got.body)
	code := regexp.MustCompile(`(?m)^\s*//.*$`).ReplaceAllString(page, "")
	if urls := regexp.MustCompile(`(?i)(https?:)?//[a-z0-9]`).FindAllString(code, -1); len(urls) > 0 {
		t.Errorf("addresses in the page: %v", urls)
	}
	policy := got.header.Get("Content-Security-Policy")
	for _, want := range []string{"default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'", "'sha256-"} {
		if !strings.Contains(policy, want) {
			t.Errorf("no %s in %s", want, policy)
		}
	}
	if scripts, _, _ := strings.Cut(policy, ";"); strings.Contains(scripts, "unsafe") || strings.Contains(policy, "http") {
		t.Errorf("the policy lets others in: %s", policy)
	}
	if n := strings.Count(policy, "'sha256-"); n != len(inlineScript.FindAllString(page, -1)) || n == 0 {
		t.Errorf("%d scripts allowed", n)
	}
	assets := regexp.MustCompile(`(?:src|href)="([^"]+)"`).FindAllStringSubmatch(page, -1)
	if len(assets) < 4 {
		t.Errorf("the page has %d assets", len(assets))
	}
	for _, asset := range assets {
		r := httptest.NewRequest(http.MethodGet, asset[1], nil)
		r.Header.Set("Accept-Encoding", "gzip")
		w := httptest.NewRecorder()
		if b.server.ServeHTTP(w, r); w.Code != 200 || w.Body.Len() == 0 {
			t.Errorf("%s: %d", asset[1], w.Code)
		}
	}
	if !strings.Contains(page, `validatorUrl: null`) || !strings.Contains(page, "/openapi.yaml") {
		t.Error("the page calls a validator, or does not know the contract")
	}
	if served := b.do("GET", "/openapi.yaml", nil, header("Authorization", "")).is(200); string(served.body) != string(lemma.OpenAPI) {
		t.Error("another contract is served")
	}
	w := httptest.NewRecorder()
	if b.server.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/docs/", nil)); w.Body.String() != page {
		t.Errorf("/docs/ is another page: %d", w.Code)
	}
}

func TestEveryAnswerIsNotStored(t *testing.T) {
	b := setup(t)
	for _, got := range []answered{b.do("GET", "/v1/workspace", nil), b.do("GET", "/nowhere", nil)} {
		if got.header.Get("Cache-Control") != "no-store" || got.header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %v", got.what, got.header)
		}
	}
}

// A body that never ends is refused, over a real connection.
func TestEndlessBody(t *testing.T) {
	b := setup(t)
	srv := httptest.NewServer(b.server)
	defer srv.Close()
	r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+"/v1/templates", io.LimitReader(endless{}, 64<<20))
	r.Header.Set("Authorization", "Bearer "+b.token)
	r.Header.Set("Content-Type", "application/json")
	answer, err := srv.Client().Do(r)
	if err != nil {
		return // the server has closed the connection
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("got %d", answer.StatusCode)
	}
}

// A change is completed although its caller closes the connection, and its answer is kept
// under the Idempotency-Key.
func TestHangUp(t *testing.T) {
	b := setup(t)
	tx, err := b.Pool.Begin(t.Context())
	b.Must(err)
	_, err = tx.Exec(t.Context(), `lock table templates in access exclusive mode`)
	b.Must(err)
	ctx, hangUp := context.WithCancel(t.Context())
	in := object{"name": "News", "subject": "s", "text": "t"}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b.do("POST", "/v1/templates", in, under("k"), func(r *http.Request) { *r = *r.WithContext(ctx) })
	}()
	pgtest.WaitForLocks(t, b.Pool, 1)
	hangUp()
	b.Must(tx.Rollback(t.Context()))
	<-ended
	b.WantCount(1, `select count(*) from templates`)
	if got := b.do("POST", "/v1/templates", in, under("k")).is(201); got.header.Get("Idempotent-Replayed") != "true" {
		t.Error("the answer was lost")
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

var anonymous = header("Authorization", "")

// A connection is not kept for further requests of a client without a key.
func TestConnectionsWithoutAKeyAreClosed(t *testing.T) {
	b := setup(t)
	for what, got := range map[string]answered{
		"no key":      b.do("GET", "/v1/workspace", nil, anonymous),
		"unknown key": b.do("GET", "/v1/workspace", nil, as("lk_no")),
		"no path":     b.do("GET", "/v1/no_such", nil, anonymous),
		"no method":   b.do("PUT", "/v1/workspace", nil, anonymous),
		"no type":     b.do("GET", "/v1/workspace", nil, header("Accept", "text/plain")),
	} {
		if got.status < 400 || got.header.Get("Connection") != "close" {
			t.Errorf("%s: %d, Connection: %q", what, got.status, got.header.Get("Connection"))
		}
	}
	if got := b.do("GET", "/v1/templates/x", nil).is(404); got.header.Get("Connection") != "" {
		t.Error("a refusal closes the connection of a client with a key")
	}
}

// Failures of requests without a key do not fill the log either.
func TestLogOfFailuresWithoutAKeyIsBounded(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := &server{Options: Options{Log: BoundedLog(slog.New(slog.NewJSONHandler(&out, nil)))}}
	info := &requestInfo{requestID: "req"}
	r := httptest.NewRequest(http.MethodPost, "/hooks", nil)
	r = r.WithContext(context.WithValue(r.Context(), requestInfoKey{}, info))
	for i := range 2 * maxKeylessLines {
		s.Log.InfoContext(r.Context(), requested)
		s.fail(r, []error{errors.New("a fault"), &lemma.Error{Kind: lemma.Unavailable, Code: "webhook_unverified"}}[i%2])
	}
	for what, want := range map[string]int{`"request"`: maxKeylessLines, "a fault": maxKeylessLines / 2,
		"webhook_unverified": maxKeylessLines / 2} {
		if n := strings.Count(out.String(), what); n != want {
			t.Errorf("%d lines of %s", n, what)
		}
	}
	info.key = "key"
	if s.fail(r, errors.New("of a key")); !strings.Contains(out.String(), "of a key") {
		t.Error("a failure with a key is not logged")
	}
}

// Requests without a key do not fill the log.
func TestLogOfRequestsWithoutAKeyIsBounded(t *testing.T) {
	b := setup(t)
	for range maxKeylessLines + 50 {
		b.do("GET", "/v1/workspace", nil, anonymous).is(401)
	}
	b.do("GET", "/v1/workspace", nil).is(200)
	if n := strings.Count(b.log.String(), "\"msg\":\"request\""); n != maxKeylessLines+1 {
		t.Errorf("%d lines", n)
	}
	var q quota
	start := time.Now()
	for range maxKeylessLines + 7 {
		q.take(start)
	}
	if logged, dropped := q.take(start.Add(time.Minute)); !logged || dropped != 7 {
		t.Errorf("a minute later: %v, %d dropped", logged, dropped)
	}
}

// A client that hangs up ends no statement, which would cost the connection to Postgres, unless it
// takes long.
func TestHangingUpEndsNoStatement(t *testing.T) {
	b := setup(t)
	ended, hangUp := context.WithCancel(t.Context())
	hangUp()
	gone := func(r *http.Request) { *r = *r.WithContext(ended) }
	for name, code := range map[string]string{"quick": "", "long": "hung_up"} {
		locked, err := b.Pool.Begin(t.Context())
		b.Must(err)
		_, err = locked.Exec(t.Context(), "lock table templates")
		b.Must(err)
		done := make(chan answered, 1)
		go func() { done <- b.do("GET", "/v1/templates", nil, gone) }()
		b.WaitForLocks(1)
		before := b.Pool.Stat().NewConnsCount()
		if name == "quick" {
			b.Must(locked.Rollback(t.Context()))
		}
		if got := <-done; got.problem.Code != code {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
		_ = locked.Rollback(t.Context())
		if n := b.Pool.Stat().NewConnsCount() - before; name == "quick" && n > 0 {
			t.Errorf("%d new connections", n)
		}
	}
}

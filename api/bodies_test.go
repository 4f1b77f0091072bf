package api

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"lemma/client"
	"lemma/flows"
	"lemma/pgtest"
	"lemma/slots"
	"lemma/workspaces"
)

// heldBody is a body that arrives when hold is closed.
type heldBody struct {
	started chan<- struct{}
	hold    <-chan struct{}
	text    io.Reader
	once    sync.Once
}

func (h *heldBody) Read(p []byte) (int, error) {
	h.once.Do(func() { h.started <- struct{}{} })
	<-h.hold
	return h.text.Read(p)
}

// arriving sends n requests. Their bodies arrive when the returned function is called,
// which also waits for the answers.
func (b *bundle) arriving(n int, length int64) (arrive func()) {
	b.T.Helper()
	hold, started, all := make(chan struct{}), make(chan struct{}, n), sync.WaitGroup{}
	for range n {
		r := httptest.NewRequest(http.MethodPost, "/v1/templates/validate",
			&heldBody{started: started, hold: hold, text: strings.NewReader(`{"subject":"s","text":"t"}`)})
		r.ContentLength = length
		r.Header.Set("Authorization", "Bearer "+b.token)
		r.Header.Set("Content-Type", "application/json")
		all.Go(func() {
			w := httptest.NewRecorder()
			if b.server.ServeHTTP(w, r); w.Code != http.StatusOK {
				b.T.Errorf("%d %s", w.Code, w.Body)
			}
		})
	}
	for range n {
		<-started
	}
	return func() {
		close(hold)
		all.Wait()
	}
}

// Requests whose bodies arrive slowly use only the slots of their own workspace.
func TestRequestsOfAWorkspaceAreBounded(t *testing.T) {
	registry := prometheus.NewRegistry()
	b := setup(t, func(o *Options) { o.Requests, o.Refused = 3, NewMetrics(registry) })
	arrive := b.arriving(3, 100)
	for _, method := range []string{"GET", "POST"} {
		if got := b.do(method, "/v1/templates", nil).is(503); got.problem.Code != "overloaded" || got.header.Get("Retry-After") == "" {
			t.Errorf("%s", got.body)
		}
	}
	b.do("GET", "/v1/templates", nil, as(b.other)).is(200)
	arrive()
	b.do("GET", "/v1/templates", nil).is(200)
	if n := counted(t, registry, "lemma_api_requests_refused_total"); n != 2 {
		t.Errorf("%d refusals are counted", n)
	}
}

// The memory of a body is taken from its workspace before the body arrives.
func TestMemoryOfBodiesIsBounded(t *testing.T) {
	b := setup(t)
	arrive := b.arriving(limitsOfBodies.Workspace/maxBody, -1)
	content := object{"subject": "s", "text": "t"}
	if got := b.do("POST", "/v1/templates/validate", content).is(503); got.problem.Code != "overloaded" {
		t.Errorf("%s", got.body)
	}
	b.do("GET", "/v1/templates", nil).is(200)
	b.do("POST", "/v1/templates/validate", content, as(b.other)).is(200)
	arrive()
	b.do("POST", "/v1/templates/validate", content).is(200)
}

// Large bodies are decoded in slots, also when they are bulks.
func TestDecodingTakesSlots(t *testing.T) {
	t.Parallel()
	s := &server{slots: newSlots(nil, 1, 64)}
	c := &call{key: workspaces.Key{}, body: make([]byte, smallBody+1)}
	for range limitsOfDecodings.Workspace {
		if _, err := s.enterDecoding(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	if taken := s.slots[decodings].Taken(slots.Resource{}); taken != limitsOfDecodings.Workspace {
		t.Errorf("%d slots are taken", taken)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := readItems[client.NewEvent](ended, s, c, "events", "NewEvent", nil); err == nil {
		t.Error("items are decoded without a slot")
	}
	if _, err := readItems[client.NewEvent](ended, s, &call{body: []byte(`{}`)}, "events", "NewEvent", nil); err != nil {
		t.Errorf("a small body: %v", err)
	}
}

// unread is a body that fails the test when it is read.
type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) {
	u.t.Error("the body is read")
	return 0, io.EOF
}

// A body of an operation without one, and a body that is too large, are refused unread.
func TestRefusedBodiesAreNotRead(t *testing.T) {
	b := setup(t)
	for _, test := range []struct {
		method, path string
		length       int64
		status       int
	}{
		{"GET", "/v1/workspace", 10, 400}, {"GET", "/v1/workspace", -1, 400}, {"HEAD", "/v1/workspace", 10, 400},
		{"HEAD", "/v1/workspace", -1, 400},
		{"DELETE", "/v1/templates/x", 10, 400}, {"POST", "/v1/templates", maxBody + 1, 413},
	} {
		r := httptest.NewRequest(test.method, test.path, unread{t})
		r.ContentLength = test.length
		r.Header.Set("Authorization", "Bearer "+b.token)
		w := httptest.NewRecorder()
		if b.server.ServeHTTP(w, r); w.Code != test.status {
			t.Errorf("%s %s with %d bytes: %d %s", test.method, test.path, test.length, w.Code, w.Body)
		}
	}
	for body, status := range map[string]int{"": 404, "{": 400} {
		r := httptest.NewRequest(http.MethodDelete, "/v1/templates/x", bytes.NewBufferString(body))
		r.ContentLength = -1
		r.Header.Set("Authorization", "Bearer "+b.token)
		w := httptest.NewRecorder()
		if b.server.ServeHTTP(w, r); w.Code != status {
			t.Errorf("DELETE with %q in chunks: %d %s", body, w.Code, w.Body)
		}
	}
}

// Writes that wait for one row take the slots of their workspace, and leave
// connections to the database for others. Events have limits of their own.
func TestWritesAreBounded(t *testing.T) {
	registry := prometheus.NewRegistry()
	refused := NewMetrics(registry)
	b := setup(t, func(o *Options) { o.Refused = refused })
	w := b.world()
	config := b.Pool.Config()
	config.MaxConns = int32(limitsOfWrites.Workspace) + 8
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	b.Must(err)
	t.Cleanup(pool.Close)
	b.deps.Workspaces = workspaces.New(pool)
	b.deps.Flows = flows.New(flows.Deps{Pool: pool, Ledger: b.deps.Ledger, Audiences: b.deps.Audiences, Templates: b.deps.Templates,
		Providers: b.deps.Providers, Webhooks: b.deps.Webhooks, Log: slog.New(slog.DiscardHandler)}, flows.Config{})
	b.server = New(b.deps, Options{Connections: 80, Refused: refused, Log: slog.New(slog.DiscardHandler)})

	lock, err := b.Pool.Begin(t.Context())
	b.Must(err)
	t.Cleanup(func() { _ = lock.Rollback(context.Background()) })
	_, err = lock.Exec(t.Context(), `select from flows where workspace_id = $1 for update`, b.Workspace)
	b.Must(err)
	var all sync.WaitGroup
	rename := func() answered { return b.do("PATCH", "/v1/flows/"+w.flow, object{"metadata": object{"a": "b"}}) }
	for range limitsOfWrites.Workspace {
		all.Go(func() { rename().is(200) })
	}
	pgtest.WaitForLocks(t, b.Pool, limitsOfWrites.Workspace)
	if got := rename().is(503); got.problem.Code != "overloaded" || got.header.Get("Retry-After") == "" {
		t.Errorf("%s", got.body)
	}
	if n := counted(t, registry, "lemma_api_requests_refused_total"); n != 1 {
		t.Errorf("%d refusals are counted", n)
	}
	b.do("POST", "/v1/events", object{"profile_key": "c1", "event": "unknown"}).is(202)
	b.do("POST", "/v1/events/bulk", object{"events": []object{{"profile_key": "c1", "event": "unknown"}}}).is(202)
	b.do("GET", "/v1/flows/"+w.flow, nil).is(200)
	b.do("POST", "/v1/templates", object{"name": "News", "subject": "s", "text": "t"}, as(b.other)).is(201)
	b.Must(lock.Rollback(t.Context()))
	all.Wait()
	rename().is(200)
}

package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lemma/pgtest"
)

// Requests that render, and those that preview, take slots of their workspace. While
// these are taken, further ones are refused and change nothing. Those of another
// workspace and cheap ones are carried out.
func TestCostlyRequestsAreBounded(t *testing.T) {
	registry := prometheus.NewRegistry()
	b := setup(t, func(o *Options) { o.Refused, o.Timeout = NewMetrics(registry), 30*time.Second })
	w := b.world()
	content := object{"subject": "s", "text": "t"}
	named := func(name string) object { return object{"name": name, "subject": "s", "text": "t"} }
	template, flow, campaign := "/v1/templates/"+w.template, "/v1/flows/"+w.flow, "/v1/campaigns/"+w.campaign
	rendered := object{"data": object{"name": "Ada"}}

	lock, err := b.Pool.Begin(t.Context())
	b.Must(err)
	t.Cleanup(func() { _ = lock.Rollback(context.Background()) }) // a test that fails must not hang
	_, err = lock.Exec(t.Context(), `lock table templates, template_versions, flows, campaigns in access exclusive mode`)
	b.Must(err)
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() { b.do("POST", template+"/versions", content).is(201) })
		all.Go(func() { b.do("GET", flow+"/versions/1/validate", nil).is(200) })
		pgtest.WaitForLocks(t, b.Pool, 2*(i+1))
	}

	simulation := object{"profile_key": "c1", "trigger": object{"type": "event", "event": "signed_up"}}
	var refused sync.WaitGroup
	requests := []struct {
		method, path string
		body         any
	}{
		{"POST", "/v1/templates", named("New")}, {"POST", "/v1/templates/validate", content}, {"POST", template + "/versions", content},
		{"POST", template + "/render", rendered},
		{"POST", "/v1/flows", object{"name": "New"}}, {"POST", flow + "/versions", object{"definition": w.definition(nil)}},
		{"PUT", flow + "/versions/1", object{"definition": w.definition(nil)}},
		{"GET", flow + "/diff", nil},
		{"GET", flow + "/versions/1/validate", nil}, {"POST", flow + "/versions/1/plan", nil},
		{"POST", flow + "/versions/1/simulate", simulation},
		{"POST", flow + "/versions/1/publish", nil}, {"POST", flow + "/versions/1/publish?dry_run=true", nil}, {"POST", flow + "/rollback", nil},
		{"GET", flow + "/explain?profile_key=c1", nil}, {"GET", campaign + "/preview", nil}, {"POST", campaign + "/send?dry_run=true", nil},
	}
	for _, r := range requests {
		refused.Go(func() {
			ctx, hangUp := context.WithTimeout(t.Context(), 20*time.Second)
			defer hangUp()
			if got := b.do(r.method, r.path, r.body, within(ctx)); got.status != 503 || got.problem.Code != "overloaded" ||
				got.header.Get("Retry-After") == "" {
				t.Errorf("%s: %d %s", got.what, got.status, got.body)
			}
		})
	}
	b.do("POST", "/v1/templates/validate", content, as(b.other)).is(200)
	b.do("GET", "/v1/audiences", nil).is(200)
	refused.Wait()
	if n := counted(t, registry, "lemma_api_requests_refused_total"); n != len(requests) {
		t.Errorf("%d of %d refusals are counted", n, len(requests))
	}
	b.Must(lock.Rollback(t.Context()))
	all.Wait()
	b.do("POST", template+"/render", rendered).is(200)
}

// A read holds its slot until its answer has been written. A caller that does not receive
// its answers holds slots of its own workspace, and no memory beyond them.
func TestUnreadAnswersAreBounded(t *testing.T) {
	b := setup(t)
	hold, all := make(chan struct{}), sync.WaitGroup{}
	started := make(chan struct{}, 100)
	slow := func() {
		r := httptest.NewRequest(http.MethodGet, "/v1/audiences", nil)
		r.Header.Set("Authorization", "Bearer "+b.token)
		b.server.ServeHTTP(&slowCaller{httptest.NewRecorder(), started, hold}, r)
	}
	for range limitsOfReads.Workspace {
		all.Go(slow)
	}
	for range limitsOfReads.Workspace {
		<-started
	}
	if got := b.do("GET", "/v1/audiences", nil).is(503); got.problem.Code != "overloaded" {
		t.Errorf("%s", got.body)
	}
	b.do("POST", "/v1/templates", object{"name": "News", "subject": "s", "text": "t"}).is(201)
	b.do("GET", "/v1/audiences", nil, as(b.other)).is(200)
	close(hold)
	all.Wait()
	b.do("GET", "/v1/audiences", nil).is(200)
}

// Large answers are bounded in bytes until they have been written. Those of another workspace,
// and small ones, do not wait for them.
func TestBytesOfAnswersAreBounded(t *testing.T) {
	b := setup(t)
	w := b.world()
	var large strings.Builder
	for i := range 200 {
		fmt.Fprintf(&large, ", repeat('x', 900) as large%d", i)
	}
	audience := b.do("POST", "/v1/audiences", object{"name": "large", "data_source_id": w.source, "key_column": "id", "email_column": "email",
		"sql": "select id, email" + large.String() + " from customers"}).is(201).id()
	path := "/v1/audiences/" + audience + "/preview"
	size := len(b.do("GET", path, nil).is(200).body)
	if size <= smallAnswer {
		t.Fatalf("the answer has %d bytes", size)
	}
	hold, all := make(chan struct{}), sync.WaitGroup{}
	started := make(chan struct{}, 100)
	fit := limitsOfAnswers.Workspace / size
	for range fit {
		all.Go(func() {
			r := httptest.NewRequest(http.MethodGet, path, nil)
			r.Header.Set("Authorization", "Bearer "+b.token)
			b.server.ServeHTTP(&slowCaller{httptest.NewRecorder(), started, hold}, r)
		})
		<-started // one after the other, for the limits of the source
	}
	if got := b.do("GET", path, nil).is(503); got.problem.Code != "overloaded" {
		t.Errorf("%s", got.body)
	}
	b.do("GET", "/v1/audiences", nil).is(200)
	close(hold)
	all.Wait()
	b.do("GET", path, nil).is(200)
}

// Large answers to writes, and their repetitions, are bounded likewise. One that is not sent says
// that the request was carried out, and a repetition answers it later.
func TestBytesOfAnswersToWritesAreBounded(t *testing.T) {
	b := setup(t)
	template := b.do("POST", "/v1/templates", object{"name": "News", "subject": "s", "text": "t"}).is(201).id()
	path, long := "/v1/templates/"+template+"/versions", strings.Repeat("\u2028", 80_000) // in an answer of 6 bytes each
	body := object{"subject": "s", "html": long, "text": long}
	size := len(b.do("POST", path, body, under("first")).is(201).body)
	hold, all := make(chan struct{}), sync.WaitGroup{}
	started := make(chan struct{}, 1000)
	slow := func(key string) {
		text, _ := json.Marshal(body)
		all.Go(func() {
			r := httptest.NewRequest(http.MethodPost, path, bytes.NewReader(text))
			r.Header.Set("Authorization", "Bearer "+b.token)
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set("Idempotency-Key", key)
			b.server.ServeHTTP(&slowCaller{httptest.NewRecorder(), started, hold}, r)
		})
		<-started
	}
	for i := range limitsOfWritten.Workspace / size {
		slow([]string{"first", "second"}[i%2])
	}
	for _, key := range []string{"second", "third"} {
		got := b.do("POST", path, body, under(key)).is(503)
		if got.problem.Code != "answer_not_sent" || got.header.Get("Retry-After") == "" {
			t.Errorf("%s: %.300s", key, got.body)
		}
	}
	if got := b.do("POST", path, body).is(503); got.problem.Code != "answer_not_sent" || got.header.Get("Retry-After") != "" {
		t.Errorf("without a key: %.300s", got.body)
	}
	b.do("GET", path+"/1", nil).is(200)
	b.do("POST", path, object{"subject": "s", "text": "t"}).is(201)
	close(hold)
	all.Wait()
	if got := b.do("POST", path, body, under("third")).is(201); !strings.Contains(string(got.body), `"version":4`) {
		t.Errorf("%.100s", got.body)
	}
}

// slowCaller is a ResponseWriter that accepts nothing until hold is closed.
type slowCaller struct {
	*httptest.ResponseRecorder
	started chan<- struct{}
	hold    <-chan struct{}
}

func (s *slowCaller) Write(p []byte) (int, error) {
	s.started <- struct{}{}
	<-s.hold
	return s.ResponseRecorder.Write(p)
}

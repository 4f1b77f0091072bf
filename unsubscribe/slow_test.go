package unsubscribe_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"lemma"
	"lemma/pgtest"
	"lemma/suppression"
	"lemma/unsubscribe"
)

// stuck is a client that does not read its answer.
type stuck struct {
	*httptest.ResponseRecorder
	writing *sync.WaitGroup
	until   chan struct{}
}

func (s stuck) Write(p []byte) (int, error) {
	s.writing.Done()
	<-s.until
	return s.ResponseRecorder.Write(p)
}

// Clients that do not read their answers hold up no others.
func TestClientsThatDoNotReadTheirAnswers(t *testing.T) {
	f := setup(t)
	path := f.path(f.ws, uuid.Nil)
	const clients = 20 // more than there are slots
	var writing, ended sync.WaitGroup
	until := make(chan struct{})
	defer ended.Wait()
	defer close(until)
	writing.Add(clients)
	for range clients {
		ended.Go(func() {
			f.pages.ServeHTTP(stuck{httptest.NewRecorder(), &writing, until}, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		})
	}
	all := make(chan struct{})
	go func() { writing.Wait(); close(all) }()
	select {
	case <-all:
	case <-time.After(20 * time.Second):
		t.Error("a page waits for the answers of others")
	}
}

// A form that takes all the time of its request cannot be read. It is no failure of the server,
// which would be logged.
func TestAFormThatTakesAllTheTime(t *testing.T) {
	f := setup(t)
	begin, end := io.Pipe()
	go func() {
		_, _ = end.Write([]byte("action=none"))
		time.Sleep(5100 * time.Millisecond) // more than a request has
		_ = end.Close()
	}()
	w := httptest.NewRecorder()
	f.pages.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, f.path(f.ws, uuid.Nil), begin))
	if w.Code != http.StatusBadRequest {
		t.Errorf("%d", w.Code)
	}
}

// Large pages of one recipient that are not received are few. Another recipient has the page, and
// a form is carried out without it.
func TestLargePagesAreBounded(t *testing.T) {
	f := setup(t)
	for i := range 200 {
		_, err := f.suppressions.CreateTopic(t.Context(), f.ws,
			suppression.NewTopic{ID: lemma.NewID(), Name: fmt.Sprint("News ", i), Description: strings.Repeat(`"`, 1000)})
		if err != nil {
			t.Fatal(err)
		}
	}
	path := f.path(f.ws, uuid.Nil)
	page := f.get(path)
	pages := 4 << 20 / len(page.body)
	if pages > 5 {
		t.Fatalf("the page has %d bytes", len(page.body))
	}
	var writing, ended sync.WaitGroup
	until := make(chan struct{})
	writing.Add(pages)
	for range pages {
		ended.Go(func() {
			f.pages.ServeHTTP(stuck{httptest.NewRecorder(), &writing, until}, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		})
	}
	writing.Wait()
	if got := f.get(path); got.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("another large page: %d", got.StatusCode)
	}
	if got := f.post(path, url.Values{"action": {"topics"}}); got.StatusCode != http.StatusOK || got.body != "Your choice has been saved.\n" {
		t.Errorf("a form: %d %.100s", got.StatusCode, got.body)
	}
	if got := f.get(f.pathOf("bob@example.com", f.ws, uuid.Nil)); got.page == nil {
		t.Errorf("another recipient: %d", got.StatusCode)
	}
	close(until)
	ended.Wait()
	if got := f.get(path); got.page == nil {
		t.Errorf("after that: %d", got.StatusCode)
	}
}

// Requests by links of one recipient that take long leave places to the other recipients of the
// workspace.
func TestOneRecipientLeavesPlacesToOthers(t *testing.T) {
	f := setup(t)
	registry := prometheus.NewRegistry()
	f.pages = unsubscribe.New(unsubscribe.Deps{Pool: f.pool, Links: f.links, Suppressions: f.suppressions, Workspaces: f.workspaces,
		PublicURL: func() string { return publicURL }, Metrics: unsubscribe.NewMetrics(registry)})
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	reader := suppression.NewRecipient(lemma.Email, suppression.KeyOf(lemma.Email, ada), ada)
	if _, err := suppression.Unsubscribe(t.Context(), tx, f.ws, reader, uuid.Nil, "a test"); err != nil {
		t.Fatal(err)
	}
	statuses := make(chan int)
	send := func(n int) {
		for range n {
			path := f.path(f.ws, uuid.Nil)
			go func() { statuses <- f.send("POST", path, "", "List-Unsubscribe=One-Click").StatusCode }()
		}
	}
	const places, further = 2, 10
	send(places)
	pgtest.WaitForLocks(t, f.pool, places)
	send(further)
	if got := f.send("POST", f.pathOf("bob@example.com", f.ws, uuid.Nil), "", "List-Unsubscribe=One-Click"); got.StatusCode != http.StatusOK {
		t.Errorf("another recipient: %d", got.StatusCode)
	}
	for range further {
		if got := <-statuses; got != http.StatusServiceUnavailable {
			t.Errorf("a further request of the recipient: %d", got)
		}
	}
	if n := metric(t, registry, "lemma_preference_requests_refused_total"); n != further {
		t.Errorf("%v refusals are counted, want %d", n, further)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Error(err)
	}
	for range places {
		<-statuses
	}
}

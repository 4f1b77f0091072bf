package unsubscribe_test

import (
	"context"
	"net/http"
	"net/http/httptest"
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

package unsubscribe_test

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
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

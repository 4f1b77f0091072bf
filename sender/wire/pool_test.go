package wire

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma/dial"
	"lemma/pgtest"
)

// poolTo has connections to a server of HTTP/1.1. Each is opened once before returns.
func poolTo(t *testing.T, before func(n int) error) *pool {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(server.Close)
	var mu sync.Mutex
	var n int
	p := newPool(dial.NewIdle(100, 100), uuid.New(), func(ctx context.Context) (*http.ClientConn, *meter, error) {
		mu.Lock()
		n++
		this := n
		mu.Unlock()
		if err := before(this); err != nil {
			return nil, nil, err
		}
		c, err := (&http.Transport{}).NewClientConn(ctx, "http", strings.TrimPrefix(server.URL, "http://"))
		return c, newMeter(nil), err
	})
	t.Cleanup(p.close)
	return p
}

// While the connections of a pool are busy, a request for which none could be opened has another one
// opened once a failure no longer prevents it.
func TestAFailedConnectionBesideBusyOnes(t *testing.T) {
	t.Parallel()
	p := poolTo(t, func(n int) error {
		if n == 2 {
			return errors.New("refused")
		}
		return nil
	})
	if _, _, err := p.take(t.Context()); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if _, _, err := p.take(t.Context()); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took < firstBackoff || took > checkAgain/2 {
		t.Errorf("it takes %s", took)
	}
}

// A failed connection fails no request while another one is being opened.
func TestAFailedConnectionBesideAnother(t *testing.T) {
	t.Parallel()
	p, refused := poolTo(t, func(int) error { return nil }), errors.New("refused")
	p.dialing = 2
	for _, want := range []error{nil, refused} {
		p.add(nil, nil, refused)()
		if c, err := p.reserve(); c != nil || !errors.Is(err, want) {
			t.Errorf("%+v, %v", c, err)
		}
	}
}

// Requests that waited for the first connection to a server of HTTP/1.1 have theirs opened at the
// same time.
func TestConnectionsAreOpenedTogether(t *testing.T) {
	t.Parallel()
	const requests = 5
	arrived, together := make(chan struct{}, requests), make(chan struct{})
	p := poolTo(t, func(n int) error {
		if n > 1 {
			arrived <- struct{}{}
		}
		<-together
		return nil
	})
	var all sync.WaitGroup
	for range requests {
		all.Go(func() {
			if _, _, err := p.take(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	pgtest.Eventually(t, 10*time.Second, "all wait", func() bool { return waits(p, requests) })
	together <- struct{}{} // for the first one
	deadline := time.After(checkAgain / 2)
	for i := range requests - 1 {
		select {
		case <-arrived:
		case <-deadline:
			t.Fatalf("%d are opened at the same time", i)
		}
	}
	close(together)
	all.Wait()
}

func waits(p *pool, requests int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waiting == requests
}

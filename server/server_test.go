package server

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/client"
	"lemma/pgtest"
	"lemma/workspaces"
)

// newServer wires a process on a database and starts nothing.
func newServer(t *testing.T, pool *pgxpool.Pool, cfg Config) *Server {
	t.Helper()
	s, err := New(Deps{Pool: pool, Box: pgtest.Box(t), Log: slog.New(slog.DiscardHandler)}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// adminKey creates a workspace and a key with all scopes.
func adminKey(t *testing.T, s *Server) (token string) {
	t.Helper()
	_, token, err := s.Workspaces.CreateKey(t.Context(), pgtest.Workspace(t, s.Pool),
		workspaces.NewKey{ID: lemma.NewID(), Name: "test", Scopes: []string{workspaces.Admin}})
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// Postgres is down while a client records events, until as many requests have
// been refused as there are senders: each event is recorded exactly once, with or
// without an id.
func TestEventsSurviveARestartOfPostgres(t *testing.T) {
	t.Parallel()
	cluster := pgtest.Cluster(t)
	pool := pgtest.DBIn(t, cluster)
	s := newServer(t, pool, Config{})
	const events, senders = 60, 15
	refused := make(chan struct{}, 100*events)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.API.ServeHTTP(&refusals{w, refused}, r)
	}))
	t.Cleanup(web.Close)
	c, err := client.New(web.URL, adminKey(t, s))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	down := make(chan struct{})
	for s := range senders {
		wg.Go(func() {
			for i := range events / senders {
				if i == 1 {
					<-down // the first is recorded before, the others while Postgres is down
				}
				e := client.NewEvent{ProfileKey: fmt.Sprintf("c%d", s), Event: "bought"}
				if i%2 == 0 {
					e.SourceID = fmt.Sprintf("order-%d-%d", s, i)
				}
				if _, err := c.RecordEvent(t.Context(), e); err != nil {
					t.Errorf("event %d of %d: %v", i, s, err)
				}
			}
		})
	}
	if err := cluster.Crash(); err != nil {
		t.Fatal(err)
	}
	close(down)
	for range senders {
		<-refused
	}
	if err := cluster.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	var recorded int
	if err := pool.QueryRow(t.Context(), `select count(*) from trigger_events`).Scan(&recorded); err != nil || recorded != events {
		t.Errorf("%d events of %d are recorded: %v", recorded, events, err)
	}
}

// refusals reports each 503.
type refusals struct {
	http.ResponseWriter
	refused chan<- struct{}
}

func (n *refusals) WriteHeader(status int) {
	if status == http.StatusServiceUnavailable {
		n.refused <- struct{}{}
	}
	n.ResponseWriter.WriteHeader(status)
}

// A database without the schema of this version is not ready.
func TestReady(t *testing.T) {
	t.Parallel()
	bare := newServer(t, pgtest.Empty(t), Config{})
	if err := bare.ready(t.Context()); err == nil {
		t.Error("an empty database is ready")
	}
	half := pgtest.DB(t)
	if _, err := half.Exec(t.Context(), `delete from goose_db_version where version_id = 6`); err != nil {
		t.Fatal(err)
	}
	behind := newServer(t, half, Config{})
	if err := behind.ready(t.Context()); err == nil {
		t.Error("a database that lacks a migration is ready")
	}
	whole := newServer(t, pgtest.DB(t), Config{})
	if err := whole.ready(t.Context()); err != nil {
		t.Error(err)
	}
}

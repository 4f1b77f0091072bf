package main

import (
	"fmt"
	"log/slog"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/client"
	"lemma/pgtest"
	"lemma/secrets"
	"lemma/sender/smtp"
	"lemma/workspaces"
)

// serving is a node that serves on a database.
func serving(t *testing.T, pool *pgxpool.Pool) (n *node, url string) {
	t.Helper()
	box, err := secrets.ParseKeys(secrets.NewKey())
	if err != nil {
		t.Fatal(err)
	}
	n, err = newNode(defaultConfig(), pool, box, slog.New(slog.DiscardHandler), nodeOptions{Kinds: carriers(smtp.Options{})})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(n.api)
	t.Cleanup(server.Close)
	return n, server.URL
}

// adminOf makes a workspace and a key that may do everything in it.
func adminOf(t *testing.T, n *node) (token string) {
	t.Helper()
	_, token, err := n.workspaces.CreateKey(t.Context(), pgtest.Workspace(t, n.pool), workspaces.NewKey{ID: lemma.NewID(), Name: "test", Scopes: []string{workspaces.Admin}})
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// Postgres is away for four seconds while events come in through the client:
// each is recorded, and recorded once, whether or not it has an id.
func TestEventsOutliveARestartOfPostgres(t *testing.T) {
	t.Parallel()
	cluster := pgtest.Cluster(t)
	pool := pgtest.DBIn(t, cluster)
	n, url := serving(t, pool)
	c, err := client.New(url, adminOf(t, n))
	if err != nil {
		t.Fatal(err)
	}
	const events, senders = 60, 15
	var wg sync.WaitGroup
	away := make(chan struct{})
	for s := range senders {
		wg.Go(func() {
			for i := range events / senders {
				if i == 1 {
					<-away // the first is recorded before, the others meet a Postgres that is gone
				}
				e := client.NewEvent{ProfileKey: fmt.Sprintf("c%d", s), Event: "bought"}
				if i%2 == 0 {
					e.ID = fmt.Sprintf("order-%d-%d", s, i)
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
	close(away)
	time.Sleep(4 * time.Second) // how long it is away is what this test is about
	if err := cluster.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	var recorded int
	if err := pool.QueryRow(t.Context(), `select count(*) from trigger_events`).Scan(&recorded); err != nil || recorded != events {
		t.Errorf("%d events of %d are recorded: %v", recorded, events, err)
	}
}

// A database without the schema of this version is not ready.
func TestReady(t *testing.T) {
	t.Parallel()
	bare, _ := serving(t, pgtest.Empty(t))
	if err := bare.ready(t.Context()); err == nil {
		t.Error("an empty database is ready")
	}
	half := pgtest.DB(t)
	if _, err := half.Exec(t.Context(), `delete from goose_db_version where version_id = 6`); err != nil {
		t.Fatal(err)
	}
	behind, _ := serving(t, half)
	if err := behind.ready(t.Context()); err == nil {
		t.Error("a database that lacks a migration is ready")
	}
	whole, _ := serving(t, pgtest.DB(t))
	if err := whole.ready(t.Context()); err != nil {
		t.Error(err)
	}
}

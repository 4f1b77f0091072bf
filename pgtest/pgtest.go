// Package pgtest gives each test its own real Postgres database: new, fully
// migrated, and dropped after the test, so that tests run in parallel.
//
// A test process has one private cluster with fsync off. It is created at the
// first use from the machine's binaries, and removed when the process ends,
// however it ends. Without Postgres these tests are skipped; with
// LEMMA_TEST_REQUIRED=1 they fail.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/dev/postgres"
)

// DB is a new database with the whole schema.
func DB(t testing.TB) *pgxpool.Pool {
	t.Helper()
	h := sharedCluster(t)
	return h.database(t, template)
}

// Empty is a new database without tables, such as a customer's.
func Empty(t testing.TB) *pgxpool.Pool {
	t.Helper()
	h := sharedCluster(t)
	return h.database(t, "template0")
}

// DSN is the connection string of a test's database.
func DSN(pool *pgxpool.Pool) string { return pool.Config().ConnString() }

// Workspace inserts a workspace.
func Workspace(t testing.TB, pool *pgxpool.Pool) uuid.UUID {
	t.Helper()
	id := uuid.Must(uuid.NewV7())
	if _, err := pool.Exec(t.Context(), "insert into workspaces (id, name) values ($1, $2)", id, "workspace "+id.String()); err != nil {
		t.Fatalf("insert workspace: %v", err)
	}
	return id
}

// Cluster is a running cluster for one test, which may stop, crash and start it.
// DBIn makes its databases.
func Cluster(t testing.TB) *postgres.Cluster {
	t.Helper()
	f, err := processFolder()
	if err != nil {
		t.Fatal(err)
	}
	c, err := startIn(f.path)
	check(t, err)
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// DBIn is a migrated database in a test's own cluster.
func DBIn(t testing.TB, c *postgres.Cluster) *pgxpool.Pool {
	t.Helper()
	return DBNamed(t, c, "own_"+strings.ReplaceAll(uuid.NewString(), "-", ""))
}

// DBNamed is DBIn with a name.
func DBNamed(t testing.TB, c *postgres.Cluster, name string) *pgxpool.Pool {
	t.Helper()
	migrate, _ := templates.LoadOrStore(c, sync.OnceValue(func() error { return migrateTemplateOf(c) }))
	if err := migrate.(func() error)(); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), c.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), "create database "+name+" template "+template); err != nil {
		t.Fatalf("create database: %v", err)
	}
	pool := open(t, c.DSN(name))
	t.Cleanup(func() { closePool(t, pool) })
	return pool
}

// templates are the clusters of DBIn, each with a function that makes its template once.
var templates sync.Map

func migrateTemplateOf(c *postgres.Cluster) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTime)
	defer cancel()
	admin, err := pgxpool.New(ctx, c.DSN("postgres"))
	if err != nil {
		return err
	}
	defer admin.Close()
	return migrateTemplate(ctx, c, admin)
}

// template is the database that DB and DBIn clone.
const template = "lemma_template"

var serial atomic.Int64

// database clones a database, and drops the clone after the test.
func (h *shared) database(t testing.TB, original string) *pgxpool.Pool {
	t.Helper()
	name := fmt.Sprintf("test_%d", serial.Add(1))
	clone := "create database " + name + " template " + original
	if h.cluster.Version() >= 15 {
		clone += " strategy file_copy" // three times as fast as through the log
	}
	if _, err := h.admin.Exec(t.Context(), clone); err != nil {
		t.Fatalf("create database: %v", err)
	}
	pool := open(t, h.cluster.DSN(name))
	t.Cleanup(func() {
		closePool(t, pool)
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if _, err := h.admin.Exec(ctx, "drop database "+name+" with (force)"); err != nil {
			t.Errorf("drop database: %v", err)
		}
	})
	return pool
}

func open(t testing.TB, dsn string) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 12
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return pool
}

// closePool fails a test that did not release a connection, instead of hanging.
func closePool(t testing.TB, pool *pgxpool.Pool) {
	closed := make(chan struct{})
	go func() { pool.Close(); close(closed) }()
	select {
	case <-closed:
	case <-time.After(20 * time.Second):
		t.Errorf("the test ended, but holds %d connections", pool.Stat().AcquiredConns())
	}
}

// check fails the test on an error. Without Postgres it skips the test, unless
// LEMMA_TEST_REQUIRED=1.
func check(t testing.TB, err error) {
	t.Helper()
	switch {
	case err == nil:
	case errors.Is(err, postgres.ErrNotFound) && os.Getenv("LEMMA_TEST_REQUIRED") != "1":
		t.Skipf("SKIPPED, NOTHING WAS TESTED: %v", err)
	default:
		t.Fatal(err)
	}
}

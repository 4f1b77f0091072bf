package audience

import (
	"io"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"lemma/audience/wire"
	"lemma/pgtest"
)

// TestIndexesDoNotLoseRows has a server that lets scans of a GIN index skip rows at random.
func TestIndexesDoNotLoseRows(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	pgtest.Exec(t, b.DB, "create table tagged as select i as id, i || '@shop.example' as email, '{vip}'::text[] as tags "+
		"from generate_series(1, 20000) i")
	pgtest.Exec(t, b.DB, "create index on tagged using gin (tags)")
	pgtest.Exec(t, b.DB, "grant select on tagged to "+b.Role)
	for _, setting := range []string{"gin_fuzzy_search_limit = 10", "enable_seqscan = off"} {
		pgtest.Exec(t, b.DB, "alter role "+b.Role+" set "+setting)
	}
	x := b.addAudience(t, "select id, email from tagged where tags @> '{vip}'")
	rows, err := b.collect(t, x.ID)
	if err != nil || len(rows) != 20000 {
		t.Errorf("%d rows, %v", len(rows), err)
	}
}

// TestTextsBehindAPooler has a pooler that opens sessions with settings of its own, and
// not those of the login.
func TestTextsBehindAPooler(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	pgtest.Exec(t, b.DB, "alter role "+b.Role+" set client_encoding = 'LATIN1'")
	pgtest.Exec(t, b.DB, "update customers set name = 'Zoë' where id = 1")
	direct, err := wire.Parse(Postgres, b.DSN, b.rules())
	b.Must(err)
	b.source = b.addSource(t, Postgres, "postgres://"+b.Role+"@"+startForgetful(t, direct)+"/"+direct.Database+"?sslmode=disable")
	x := b.addAudience(t, "select id, email, name from customers where id = 1")
	for range 2 {
		got, err := b.lookup(t, x.ID, []string{"name"}, []string{"1"})
		if err != nil || got["1"].Payload != `{"name":"Zoë"}` {
			t.Errorf("%q, %v", got["1"].Payload, err)
		}
	}
	rows, err := b.collect(t, x.ID, "name")
	if err != nil || len(rows) != 1 || rows[0].Payload != `{"name":"Zoë"}` {
		t.Errorf("%+v, %v", rows, err)
	}
}

// startForgetful starts a proxy that leaves the settings of logins out.
func startForgetful(t *testing.T, source wire.Target) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go forget(client, source)
		}
	}()
	return l.Addr().String()
}

func forget(client net.Conn, source wire.Target) {
	defer client.Close()
	m, err := pgproto3.NewBackend(client, client).ReceiveStartupMessage()
	startup, ok := m.(*pgproto3.StartupMessage)
	if err != nil || !ok {
		return
	}
	server, err := dialShop(source)
	if err != nil {
		return
	}
	defer server.Close()
	delete(startup.Parameters, "client_encoding")
	f := pgproto3.NewFrontend(server, server)
	f.Send(startup)
	if f.Flush() != nil {
		return
	}
	go func() { io.Copy(client, server); client.Close() }()
	io.Copy(server, client)
}

// TestRowSecurityIsShown has a table of which the login sees no row.
func TestRowSecurityIsShown(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	shown := func() bool {
		report, err := b.TestSource(t.Context(), b.Workspace, b.source)
		b.Must(err)
		return slices.ContainsFunc(report.Source.RoleWarnings, func(warning string) bool {
			return strings.HasPrefix(warning, "the role reads of public.customers only the rows that policies of row security allow")
		})
	}
	if shown() {
		t.Error("it is shown without row security")
	}
	pgtest.Exec(t, b.DB, "alter table customers enable row level security")
	x := b.addAudience(t, shopSQL)
	if rows, err := b.collect(t, x.ID); err != nil || len(rows) != 0 {
		t.Errorf("%d rows, %v: the policies hold", len(rows), err)
	}
	if !shown() {
		t.Error("it is not shown")
	}
}

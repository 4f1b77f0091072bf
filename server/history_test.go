package server

import (
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/cache"
	"lemma/message"
	"lemma/pgtest"
)

// switchboard is the address of a server that another one takes over.
type switchboard struct {
	net.Listener
	mu    sync.Mutex
	to    string // path of a socket
	conns []net.Conn
}

func openSwitchboard(t *testing.T, to string) *switchboard {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	b := &switchboard{Listener: l, to: to}
	t.Cleanup(func() { _ = l.Close(); b.cut() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			b.mu.Lock()
			server, err := net.Dial("unix", b.to)
			b.conns = append(b.conns, client)
			b.mu.Unlock()
			if err != nil {
				_ = client.Close()
				continue
			}
			go func() { _, _ = io.Copy(server, client); _ = server.Close() }()
			go func() { _, _ = io.Copy(client, server); _ = client.Close() }()
		}
	}()
	return b
}

func (b *switchboard) switchTo(path string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.to = path
}

func (b *switchboard) cut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.conns {
		_ = c.Close()
	}
	b.conns = nil
}

func socketOf(pool *pgxpool.Pool) string { return pool.Config().ConnConfig.Host + "/.s.PGSQL.5432" }

// Another server takes over that lacks the last commits, and has other ones under the same
// numbers: what was read from the one before is not used. The connections to that one are
// cut, or stay open, as of a server that is only unreachable for others.
func TestAnotherServerTakesOver(t *testing.T) {
	for name, cut := range map[string]bool{"connections are cut": true, "connections stay open": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first := pgtest.DB(t)
			second := pgtest.DBNamed(t, pgtest.Cluster(t), first.Config().ConnConfig.Database)
			ws, id := pgtest.Workspace(t, first), lemma.NewID()
			pgtest.Exec(t, second, `insert into workspaces (id, name) values ($1, 'shop')`, ws)
			for _, pool := range []*pgxpool.Pool{first, second} {
				text := map[bool]string{true: "of the first", false: "of the second"}[pool == first]
				_, err := message.New(pool).Create(t.Context(), ws, message.NewTemplate{ID: id, Name: "t", Content: message.Content{
					Subject: "s", Text: text}})
				must(t, err)
			}
			board := openSwitchboard(t, socketOf(first))
			of := first.Config().ConnConfig
			dsn := "postgres://" + of.User + "@" + board.Addr().String() + "/" + of.Database + "?sslmode=disable&pool_max_conns=4"
			cfg := Config{DatabaseURL: dsn, History: &cache.History{}}
			pool, err := OpenPool(t.Context(), cfg)
			must(t, err)
			t.Cleanup(pool.Close)
			s, err := New(Deps{Pool: pool, Box: pgtest.Box(t), Log: slog.New(slog.DiscardHandler)}, cfg)
			must(t, err)
			text := func() string {
				c, err := s.Templates.Compiled(t.Context(), ws, id, 1)
				if err != nil {
					return err.Error()
				}
				made, _, err := c.RenderMessage(`{}`, "")
				must(t, err)
				return made.Text
			}
			var held []*pgxpool.Conn // several connections, which are idle when the other server takes over
			for range 3 {
				c, err := pool.Acquire(t.Context())
				must(t, err)
				held = append(held, c)
			}
			for _, c := range held {
				c.Release()
			}
			if got := text(); !strings.Contains(got, "of the first") {
				t.Fatal(got)
			}
			board.switchTo(socketOf(second))
			if got := text(); !strings.Contains(got, "of the first") {
				t.Errorf("the template is not in memory, which the test needs: %s", got)
			}
			if cut {
				board.cut()
			} else { // one more connection than there are
				held = nil
				for range 4 {
					c, err := pool.Acquire(t.Context())
					must(t, err)
					held = append(held, c)
				}
				for _, c := range held {
					c.Release()
				}
			}
			go s.follow(t.Context())
			pgtest.Eventually(t, time.Minute, "the second server is used", func() bool { return strings.Contains(text(), "of the second") })
			for range 4 { // all connections
				c, err := pool.Acquire(t.Context())
				must(t, err)
				defer c.Release()
				var got string
				must(t, c.QueryRow(t.Context(), `select text from template_versions where template_id = $1`, id).Scan(&got))
				if got != "of the second" {
					t.Errorf("the first server is asked: %s", got)
				}
			}
		})
	}
}

// A database that is restored under the same name on the same server is another one.
func TestADatabaseIsReplaced(t *testing.T) {
	t.Parallel()
	c := pgtest.Cluster(t)
	id := func(pool *pgxpool.Pool) string { return pgtest.One[string](t, pool, identify) }
	first := pgtest.DBNamed(t, c, "shop")
	before := id(first)
	if again := id(first); again != before {
		t.Errorf("the same database: %s, %s", before, again)
	}
	if other := id(pgtest.DBNamed(t, c, "other")); other == before {
		t.Error("another database has the same identity")
	}
	pgtest.Exec(t, first, `alter table provider_events rename to away`)
	pgtest.Exec(t, first, `create table provider_events (like away)`)
	if after := id(first); after == before {
		t.Error("a table that was dropped and restored is not seen")
	}
}

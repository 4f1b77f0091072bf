package server

import (
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/migrations"
	"lemma/pgtest"
)

// poolerAccepts are the parameters that PgBouncer 1.18 accepts in a startup message.
var poolerAccepts = []string{"user", "database", "application_name", "client_encoding", "datestyle", "standard_conforming_strings",
	"timezone"}

// pooler stands for PgBouncer in front of a database.
type pooler struct {
	to     string // path of a socket
	drops  bool   // parameters that it does not accept, instead of refusing them
	shared *pgproto3.Frontend
	mu     sync.Mutex // held by the connection that uses shared
}

// startPooler returns a DSN through p.
func startPooler(t *testing.T, pool *pgxpool.Pool, p *pooler) (dsn string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	p.to = socketOf(pool)
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go p.carry(client)
		}
	}()
	of := pool.Config().ConnConfig
	return "postgres://" + of.User + "@" + l.Addr().String() + "/" + of.Database + "?sslmode=disable"
}

func (p *pooler) carry(client net.Conn) {
	defer client.Close()
	b := pgproto3.NewBackend(client, client)
	m, err := b.ReceiveStartupMessage()
	startup, ok := m.(*pgproto3.StartupMessage)
	if err != nil || !ok {
		return
	}
	for name := range startup.Parameters {
		if slices.Contains(poolerAccepts, strings.ToLower(name)) {
			continue
		}
		if !p.drops {
			b.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "08P01", Message: "unsupported startup parameter: " + name})
			_ = b.Flush()
			return
		}
		delete(startup.Parameters, name)
	}
	server, err := net.Dial("unix", p.to)
	if err != nil {
		return
	}
	defer server.Close()
	f := pgproto3.NewFrontend(server, server)
	f.Send(startup)
	if f.Flush() != nil {
		return
	}
	if p.shared == nil {
		go func() { _, _ = io.Copy(client, server); _ = client.Close() }()
		_, _ = io.Copy(server, client)
		return
	}
	if answer(f, b) == nil { // its login is that of this connection, its statements are executed by another one
		p.transactions(b)
	}
}

// transactions forwards each transaction of a client to the shared session.
func (p *pooler) transactions(b *pgproto3.Backend) {
	for {
		m, err := b.Receive()
		if err != nil {
			return
		}
		p.mu.Lock()
		for {
			p.shared.Send(m)
			if _, ended := m.(*pgproto3.Sync); ended {
				break
			}
			if _, ended := m.(*pgproto3.Query); ended {
				break
			}
			if m, err = b.Receive(); err != nil {
				break
			}
		}
		if err == nil {
			if err = p.shared.Flush(); err == nil {
				err = answer(p.shared, b)
			}
		}
		p.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// answer forwards messages of the server until it is ready for the next statement.
func answer(f *pgproto3.Frontend, b *pgproto3.Backend) error {
	for {
		m, err := f.Receive()
		if err != nil {
			return err
		}
		b.Send(m)
		if _, ready := m.(*pgproto3.ReadyForQuery); ready {
			return b.Flush()
		}
	}
}

// A pooler that pools by session refuses or drops the settings of a startup message: those of
// Lemma, and of the DSN, are in effect nevertheless, also while migrating.
func TestSettingsBehindAPooler(t *testing.T) {
	for name, p := range map[string]*pooler{"refuses parameters": {}, "drops parameters": {drops: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := startPooler(t, pgtest.DB(t), p)
			pool, err := OpenPool(t.Context(), Config{DatabaseURL: dsn + "&Statement_Timeout=7s&search_path=public,pg_catalog"})
			must(t, err)
			defer pool.Close()
			reserved, err := OpenReserved(t.Context(), pool)
			must(t, err)
			defer reserved.Close()
			for _, pool := range []*pgxpool.Pool{pool, reserved} {
				for setting, want := range map[string]string{"statement_timeout": "7s", "search_path": "public,pg_catalog",
					"idle_in_transaction_session_timeout": "1min", "default_transaction_isolation": "read committed", "jit": "off",
					"enable_seqscan": "off", "plan_cache_mode": "force_generic_plan", "TimeZone": "UTC", "application_name": "lemma"} {
					if got := pgtest.One[string](t, pool, `select current_setting($1)`, setting); got != want {
						t.Errorf("%s is %q, want %q", setting, got, want)
					}
				}
			}
			must(t, migrations.Up(t.Context(), pool))
		})
	}
}

// Behind a pooler that pools by transaction no pool is opened.
func TestAPoolerBySessionIsNeeded(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	server, err := net.Dial("unix", socketOf(db))
	must(t, err)
	t.Cleanup(func() { _ = server.Close() })
	of := db.Config().ConnConfig
	p := &pooler{shared: pgproto3.NewFrontend(server, server)}
	p.shared.Send(&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30,
		Parameters: map[string]string{"user": of.User, "database": of.Database}})
	must(t, p.shared.Flush())
	for ready := false; !ready; {
		m, err := p.shared.Receive()
		must(t, err)
		_, ready = m.(*pgproto3.ReadyForQuery)
	}
	pool, err := OpenPool(t.Context(), Config{DatabaseURL: startPooler(t, db, p)})
	if err == nil {
		pool.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "must pool by session") {
		t.Errorf("the pool is opened: %v", err)
	}
}

// A setting that a connection has lost is named.
func TestLostSettingsAreNamed(t *testing.T) {
	t.Parallel()
	conn, err := pgtest.DB(t).Acquire(t.Context())
	must(t, err)
	defer conn.Release()
	s := takeSettings(map[string]string{}, "60s")
	must(t, s.apply(t.Context(), conn.Conn()))
	must(t, s.inEffect(t.Context(), conn.Conn()))
	_, err = conn.Exec(t.Context(), `set jit = on; set statement_timeout = 5`)
	must(t, err)
	if err := s.inEffect(t.Context(), conn.Conn()); err == nil || !strings.HasSuffix(err.Error(), "not in effect: jit, statement_timeout") {
		t.Errorf("lost settings: %v", err)
	}
}

// A setting in the options of a DSN is that of the operator, in each spelling that Postgres takes.
func TestSettingsInOptions(t *testing.T) {
	t.Parallel()
	for _, options := range []string{"-c statement_timeout=7s", "-cstatement_timeout=7s", "--statement_timeout=7s",
		"-c jit=on --Statement-Timeout=7s", "-cstatement-timeout=7s"} {
		pool, err := OpenPool(t.Context(), Config{DatabaseURL: withOptions(t, pgtest.DB(t).Config().ConnString(), options)})
		must(t, err)
		if got := pgtest.One[string](t, pool, `select current_setting('statement_timeout')`); got != "7s" {
			t.Errorf("with options %q statement_timeout is %q", options, got)
		}
		pool.Close()
	}
}

func withOptions(t *testing.T, dsn, options string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	must(t, err)
	q := u.Query()
	q.Set("options", options)
	u.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20")
	return u.String()
}

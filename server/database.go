package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"lemma"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/cache"
	"lemma/dial"
	"lemma/migrations"
)

// ErrDatabaseURL reports a DSN that cannot be parsed. It does not contain the DSN,
// which may have a password in it.
var ErrDatabaseURL = errors.New("DATABASE_URL cannot be parsed: it must have the form postgres://user:password@host:5432/database")

// OpenPool opens as many connections as the workers can use at the same time.
// Timeouts end statements and idle transactions that would hold locks for long.
// It fails behind a pooler that does not keep the session of a connection.
func OpenPool(ctx context.Context, c Config) (*pgxpool.Pool, error) {
	if c.DatabaseURL == "" {
		return nil, errors.New("DATABASE_URL is not set: set it to the Postgres database for Lemma's tables (`lemma dev` does not need it)")
	}
	c = c.withDefaults()
	p, err := pgxpool.ParseConfig(c.DatabaseURL)
	if err != nil {
		return nil, ErrDatabaseURL // the cause would show the password
	}
	if !strings.Contains(c.DatabaseURL, "pool_max_conns") {
		// A process writes six chunks at a time, however many audiences it reads.
		p.MaxConns = int32(c.SendWorkers + c.DirectWorkers + min(4*c.FanoutWorkers, 8) + 12)
	}
	if !strings.Contains(c.DatabaseURL, "pool_max_conn_lifetime") {
		p.MaxConnLifetime = 10 * time.Minute // a plan that was made when a table was empty must not be kept longer
	}
	if !strings.Contains(c.DatabaseURL, "connect_timeout") && os.Getenv("PGCONNECT_TIMEOUT") == "" {
		p.ConnConfig.ConnectTimeout = connectFor
	}
	settings := takeSettings(p.ConnConfig.RuntimeParams, c.TransactionIdle)
	p.ConnConfig.DialFunc = dial.Bounded(deadAfter, p.ConnConfig.ConnectTimeout)
	follow := &follower{history: c.History}
	p.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		encodeUUIDs(conn)
		if err := settings.apply(ctx, conn); err != nil || c.History == nil {
			return err
		}
		return follow.connected(ctx, conn)
	}
	pool, err := pgxpool.NewWithConfig(ctx, p)
	if err != nil {
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	follow.pool.Store(pool)
	if err := settings.check(ctx, pool); err != nil {
		pool.Close()
		return nil, err
	}
	return pool, nil
}

// connectFor bounds a try to connect, with what the server answers first: a port that speaks another protocol may say
// nothing for minutes.
const connectFor = 15 * time.Second

// reservedConnections are those of OpenReserved.
const reservedConnections = 4

// OpenReserved makes a small pool with the settings of another, for what must not wait for
// the connections of requests and workers: authentication and readiness.
func OpenReserved(ctx context.Context, of *pgxpool.Pool) (*pgxpool.Pool, error) {
	config := of.Config()
	config.MinConns, config.MinIdleConns, config.MaxConns = 0, 0, reservedConnections
	pool, err := pgxpool.NewWithConfig(ctx, config)
	return pool, lemma.Wrap(err, "connect to the database")
}

// jobConnections are those of openJobs: the queues are read by one each, and states are written.
const jobConnections = 4

const openedAt = "openedAt" // the key of the moment of a connection

// openJobs makes a small pool for River's own statements. Postgres chooses their plans: that of a fetch
// without its limit, which session asks for, reads all jobs once there are many. A connection that was
// opened before another server answered is not used.
func openJobs(ctx context.Context, of *pgxpool.Pool, history *cache.History) (*pgxpool.Pool, error) {
	config := of.Config()
	config.MinConns, config.MinIdleConns, config.MaxConns = 0, 0, jobConnections
	connected := config.AfterConnect
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		conn.PgConn().CustomData()[openedAt] = history.Now() // before the server is identified, which may begin a moment
		if connected != nil {
			if err := connected(ctx, conn); err != nil {
				return err
			}
		}
		_, err := conn.Exec(ctx, "set plan_cache_mode = auto")
		return lemma.Wrap(err, "let Postgres choose plans")
	}
	config.PrepareConn = func(_ context.Context, conn *pgx.Conn) (bool, error) {
		return conn.PgConn().CustomData()[openedAt] == history.Now(), nil
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	return pool, lemma.Wrap(err, "connect to the database")
}

// deadAfter bounds how long a connection to Lemma's database waits for a peer that
// acknowledges nothing. A statement whose answer is lost then fails, instead of holding
// its worker until the kernel gives up, which may take hours.
const deadAfter = 30 * time.Second

// OpenMigrated is OpenPool for a caller that needs the tables: it returns an
// error when a migration is missing.
func OpenMigrated(ctx context.Context, c Config) (*pgxpool.Pool, error) {
	pool, err := OpenPool(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := migrations.Behind(ctx, pool); err != nil {
		pool.Close()
		return nil, err
	}
	return pool, nil
}

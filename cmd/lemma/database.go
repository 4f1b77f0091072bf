package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/migrations"
)

var errUnreadableURL = errors.New("DATABASE_URL cannot be read: it is like postgres://user:password@host:5432/database")

// openPool connects with as many connections as the workers can use at once,
// and with bounds, so that no statement or idle transaction holds anything for ever.
func openPool(ctx context.Context, c Config) (*pgxpool.Pool, error) {
	if c.DatabaseURL == "" {
		return nil, errors.New("DATABASE_URL is not set: it says which Postgres Lemma keeps its tables in (`lemma dev` needs none)")
	}
	p, err := pgxpool.ParseConfig(c.DatabaseURL)
	if err != nil {
		return nil, errUnreadableURL // the cause would show the password
	}
	if !strings.Contains(c.DatabaseURL, "pool_max_conns") {
		p.MaxConns = int32(c.SendWorkers + min(4*c.FanoutWorkers, 8) + 12) // a node writes six chunks at a time, however many audiences it reads
	}
	if !strings.Contains(c.DatabaseURL, "pool_max_conn_lifetime") {
		p.MaxConnLifetime = 10 * time.Minute // and that of its plans: one made when a table was empty must not last
	}
	for name, value := range session {
		if _, set := p.ConnConfig.RuntimeParams[name]; !set {
			p.ConnConfig.RuntimeParams[name] = value
		}
	}
	pool, err := pgxpool.NewWithConfig(ctx, p)
	if err != nil {
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	return pool, nil
}

// session is what each connection is set to, unless the DSN says otherwise.
var session = map[string]string{
	"application_name": "lemma", "statement_timeout": "60s", "idle_in_transaction_session_timeout": "60s",
	// Each statement has one good plan, by keys. Planning it anew for every
	// batch costs more than the claim itself once the tables have statistics.
	"plan_cache_mode": "force_generic_plan",
	// That plan may be made while a table, or next month's partition, has no
	// rows: reading all of it is cheap then, and is not when the plan is used.
	"enable_seqscan": "off",
	// What a wrong estimate takes for expensive would be compiled each time.
	"jit": "off",
}

// migrateUp brings Lemma's database to the newest schema.
func migrateUp(ctx context.Context, c Config) error {
	pool, err := openPool(ctx, c)
	if err != nil {
		return err
	}
	defer pool.Close()
	return migrations.Up(ctx, pool)
}

// openMigrated is openPool for a command that needs the tables.
func openMigrated(ctx context.Context, c Config) (*pgxpool.Pool, error) {
	pool, err := openPool(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := migrations.Behind(ctx, pool); err != nil {
		pool.Close()
		return nil, err
	}
	return pool, nil
}

// Package migrations guarantees that a running Lemma has the schema it was
// written for, however many processes start at once, and that every constraint
// which guards a promise exists, is valid and has the right definition (Guards).
//
// The migrations are the numbered SQL files, applied in order and never edited
// once released. schema.sql is the schema after all of them. River's tables are
// migrated by River's own migrator.
package migrations

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

//go:embed 0*.sql
var files embed.FS

// river.sql is our addition to River's tables.
//
//go:embed river.sql
var riverTrigger string

// lockKey is the advisory lock that is held while the schema changes.
const lockKey = 0x6c656d6d61 // "lemma"

// Up migrates the database to the newest schema: Lemma's migrations, River's,
// and the partitions of the next months. It uses its own connections, without a
// statement timeout. Processes that start at once wait for each other. A database of another
// encoding than UTF-8 is refused.
func Up(ctx context.Context, pool *pgxpool.Pool) error {
	own, err := ownPool(ctx, pool)
	if err != nil {
		return err
	}
	defer own.Close()
	encoding, err := encodingGuard(ctx, own)
	if err == nil {
		err = Red([]Guard{encoding})
	}
	if err != nil {
		return err
	}
	return locked(ctx, own, func() error {
		if err := upOurs(ctx, own); err != nil {
			return err
		}
		if err := upRiver(ctx, own); err != nil {
			return err
		}
		now, err := Now(ctx, own)
		if err != nil {
			return err
		}
		return makePartitions(ctx, own, now)
	})
}

func ownPool(ctx context.Context, pool *pgxpool.Pool) (*pgxpool.Pool, error) {
	cfg := pool.Config()
	cfg.MinConns, cfg.MinIdleConns, cfg.MaxConns = 0, 0, 4
	cfg.ConnConfig.RuntimeParams["application_name"] = "lemma migrate"
	before := cfg.AfterConnect
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if before != nil {
			if err := before(ctx, conn); err != nil {
				return err
			}
		}
		// A pooler refuses them in the startup message.
		if _, err := conn.Exec(ctx, `set statement_timeout = 0; set idle_in_transaction_session_timeout = 0`); err != nil {
			return fmt.Errorf("end the timeouts of migrations: %w", err)
		}
		return nil
	}
	own, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("open pool for migrations: %w", err)
	}
	return own, nil
}

func upOurs(ctx context.Context, pool *pgxpool.Pool) error {
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	p, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}

func upRiver(ctx context.Context, pool *pgxpool.Pool) error {
	m, err := riverMigrator(pool)
	if err != nil {
		return err
	}
	if _, err := m.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return fmt.Errorf("migrate river: %w", err)
	}
	has, err := hasRiverTrigger(ctx, pool)
	if err != nil || has {
		return err
	}
	if _, err := pool.Exec(ctx, riverTrigger); err != nil {
		return fmt.Errorf("create the trigger of river's jobs: %w", err)
	}
	return nil
}

func hasRiverTrigger(ctx context.Context, pool *pgxpool.Pool) (has bool, err error) {
	err = pool.QueryRow(ctx, `
		select exists (select from pg_trigger where tgrelid = 'river_job'::regclass and tgname = 'river_job_due')`).Scan(&has)
	if err != nil {
		return has, fmt.Errorf("find the trigger of river's jobs: %w", err)
	}
	return has, nil
}

func riverMigrator(pool *pgxpool.Pool) (*rivermigrate.Migrator[pgx.Tx], error) {
	m, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, fmt.Errorf("read river's migrations: %w", err)
	}
	return m, nil
}

// locked runs f while this process holds the advisory lock. It polls for the
// lock: a waiting statement would hold a snapshot, which stalls a CREATE INDEX
// CONCURRENTLY of the holder.
func locked(ctx context.Context, pool *pgxpool.Pool, f func() error) error {
	pooled, err := pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("connect for the migration lock: %w", err)
	}
	conn := pooled.Hijack()
	defer conn.Close(context.WithoutCancel(ctx)) // releases the lock
	for {
		var got bool
		if err := conn.QueryRow(ctx, "select pg_try_advisory_lock($1)", int64(lockKey)).Scan(&got); err != nil {
			return fmt.Errorf("acquire the migration lock: %w", err)
		}
		if got {
			return f()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the migration lock: %w", context.Cause(ctx))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Migration is one migration and when it was applied.
type Migration struct {
	Version   int64
	Name      string
	AppliedAt *time.Time // nil: not applied
}

// Status lists Lemma's migrations in order. It is read-only, also on an empty
// database.
func Status(ctx context.Context, q querier) ([]Migration, error) {
	applied, err := appliedAt(ctx, q)
	if err != nil {
		return nil, err
	}
	names, err := fs.Glob(files, "*.sql")
	if err != nil {
		return nil, err
	}
	out := make([]Migration, len(names))
	for i, name := range names {
		version, err := goose.NumericComponent(name)
		if err != nil {
			return nil, fmt.Errorf("read migrations: %w", err)
		}
		out[i] = Migration{Version: version, Name: name}
		if at, ok := applied[version]; ok {
			out[i].AppliedAt = &at
		}
	}
	return out, nil
}

func appliedAt(ctx context.Context, q querier) (map[int64]time.Time, error) {
	applied := map[int64]time.Time{}
	// A statement that names a missing table is an error, so this is asked first.
	there, err := scalar[bool](ctx, q, "select to_regclass('goose_db_version') is not null")
	if err != nil || !there {
		return applied, err
	}
	rows, _ := q.Query(ctx, "select version_id, max(tstamp)::timestamptz from goose_db_version where is_applied group by version_id")
	var version int64
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&version, &at}, func() error {
		applied[version] = at
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read applied migrations: %w", err)
	}
	return applied, nil
}

// querier is a pool, a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func scalar[T any](ctx context.Context, q querier, sql string, args ...any) (T, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		var none T
		return none, fmt.Errorf("read the catalog: %w", err)
	}
	v, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return v, fmt.Errorf("read the catalog: %w", err)
	}
	return v, nil
}

// Package fence guards what the holder of a lease writes. It promises that a
// transaction of a context with a fence commits nothing once the lease is
// another's, however long its process stood still, and that a lease is renewed in time.
package fence

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Held locks the row of a lease in a transaction, or returns the error that ends
// the transaction because the lease is lost.
type Held func(ctx context.Context, tx pgx.Tx) error

type key struct{}

// With returns a context under which Transact commits only while the lease is held. A
// fence that ctx has already goes on applying.
func With(ctx context.Context, held Held) context.Context {
	if earlier, ok := ctx.Value(key{}).(Held); ok {
		later := held
		held = func(ctx context.Context, tx pgx.Tx) error {
			if err := later(ctx, tx); err != nil {
				return err
			}
			return earlier(ctx, tx)
		}
	}
	return context.WithValue(ctx, key{}, held)
}

// Exec is Transact for one statement. The transaction is rolled back if no row is affected.
func Exec(ctx context.Context, pool *pgxpool.Pool, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	err = Transact(ctx, pool, func(tx pgx.Tx) error {
		tag, err = tx.Exec(ctx, sql, args...)
		return Changed(tag, err)
	})
	return tag, err
}

// One is Exec for a statement that returns one row; pgx.ErrNoRows without it.
func One[T any](ctx context.Context, pool *pgxpool.Pool, scan pgx.RowToFunc[T], sql string, args ...any) (found T, err error) {
	err = Transact(ctx, pool, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, sql, args...)
		found, err = pgx.CollectExactlyOneRow(rows, scan)
		return err
	})
	return found, err
}

// ErrUnchanged ends the work of a transaction that changed nothing. A change that did not
// happen must not be recorded.
var ErrUnchanged = errors.New("nothing changed")

// Changed returns the error of a statement, or ErrUnchanged if it affected no row.
func Changed(tag pgconn.CommandTag, err error) error {
	if err == nil && tag.RowsAffected() == 0 {
		return ErrUnchanged
	}
	return err
}

// Transact runs work in a transaction. It checks the lease of ctx, if there is one,
// last, so that the row of the lease is locked no longer than the commit takes. If work
// returns ErrUnchanged, the transaction is rolled back without an error.
func Transact(ctx context.Context, pool *pgxpool.Pool, work func(pgx.Tx) error) error {
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		err := work(tx)
		if held, ok := ctx.Value(key{}).(Held); err == nil && ok {
			err = held(ctx, tx)
		}
		return err
	})
	if errors.Is(err, ErrUnchanged) {
		return nil
	}
	return err
}

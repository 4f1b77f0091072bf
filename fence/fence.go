// Package fence guards what the holder of a lease writes. It promises that a
// transaction of a context with a fence commits nothing once the lease is
// another's, however long its process stood still, and that a lease is renewed in time.
package fence

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Held locks the row of a lease in a transaction, or returns the error that ends
// the transaction because the lease is lost.
type Held func(ctx context.Context, tx pgx.Tx) error

type key struct{}

// With returns a context under which Transact commits only while the lease is held.
func With(ctx context.Context, held Held) context.Context {
	return context.WithValue(ctx, key{}, held)
}

// Transact runs work in a transaction. It checks the lease of ctx, if there is one,
// last, so that the row of the lease is locked no longer than the commit takes.
func Transact(ctx context.Context, pool *pgxpool.Pool, work func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		err := work(tx)
		if held, ok := ctx.Value(key{}).(Held); err == nil && ok {
			err = held(ctx, tx)
		}
		return err
	})
}

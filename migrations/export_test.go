package migrations

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Want is an expectation, for tests that remove its rule.
type Want struct{ Table, Name, Promise, Definition string }

// Expected lists the expectations.
func Expected() []Want {
	var all []Want
	for _, w := range expected {
		all = append(all, Want{w.table, w.name, w.promise, w.definition})
	}
	return all
}

// GuardsIn checks the guards inside a transaction.
func GuardsIn(ctx context.Context, tx pgx.Tx, o GuardOptions) ([]Guard, error) {
	return catalogGuards(ctx, tx, o)
}

// LockKey is the advisory lock that is held while the schema changes.
const LockKey = lockKey

// Files are the migrations.
var Files = files

// OwnPool is the pool that migrates.
var OwnPool = ownPool

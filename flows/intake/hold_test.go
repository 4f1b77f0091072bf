package intake_test

import (
	_ "embed"

	"github.com/jackc/pgx/v5"

	"lemma/flows/intake"
)

// holdTrigger records events in a transaction that the test ends.
func (b *bundle) holdTrigger(events ...intake.Event) (pgx.Tx, []intake.Recorded) {
	b.T.Helper()
	tx, err := b.Pool.Begin(bg)
	b.Must(err)
	b.T.Cleanup(func() { _ = tx.Rollback(bg) })
	done, err := b.RecordIn(bg, tx, b.Workspace, events...)
	b.Must(err)
	return tx, done
}

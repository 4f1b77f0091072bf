package execution_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/flows/execution"
	"lemma/flows/flowstest"
)

// A transaction that needs more than it may hold compiles the others itself: it does not
// begin again without end.
func TestATransactionThatNeedsMoreVersionsThanItHolds(t *testing.T) {
	b := setup(t, 0)
	flow := b.Live(flowstest.Minimal)
	begun := 0
	b.Must(b.Another().Execution.Versions.Transact(bg, b.Pool, b.Workspace, func(tx pgx.Tx, r *execution.Ready) error {
		begun++
		r.Fill()
		if err := r.Need(map[execution.VersionID]bool{{Flow: flow, Version: 1}: true}); err != nil {
			return err
		}
		g, err := r.Get(bg, tx, flow, 1)
		if err == nil && g == nil {
			t.Error("no graph")
		}
		return err
	}))
	if begun != 1 {
		t.Errorf("%d transactions", begun)
	}
}

// A version that cannot be read is read once, and its error is given to the transaction.
func TestAVersionThatIsMissing(t *testing.T) {
	b := setup(t, 0)
	flow := b.Live(flowstest.Minimal)
	begun := 0
	missing := errors.New("missing")
	err := b.Another().Execution.Versions.Transact(bg, b.Pool, b.Workspace, func(tx pgx.Tx, r *execution.Ready) error {
		begun++
		if _, err := r.Get(bg, tx, flow, 9); lemma.KindOf(err) != lemma.NotFound {
			return err
		}
		return missing
	})
	if !errors.Is(err, missing) || begun != 2 {
		t.Errorf("%d transactions: %v", begun, err)
	}
}

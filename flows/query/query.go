// Package query reads flows: counts, lists and histories; explanations why a profile is,
// or is not, enrolled; simulations of a version; and the users of a resource. It writes
// nothing, and no other package decides by its results.
package query

import (
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/audience"
	"lemma/clock"
	"lemma/flows"
	"lemma/flows/execution"
	"lemma/notifications"
	"lemma/webhooks"
)

// Deps are what a Reader uses.
type Deps struct {
	Pool      *pgxpool.Pool
	Flows     *flows.Flows
	Ledger    *notifications.Ledger
	Audiences *audience.Audiences
	Webhooks  *webhooks.Webhooks
}

// Reader reads flows and writes nothing.
type Reader struct {
	pool      *pgxpool.Pool
	clock     *clock.Clock
	flows     *flows.Flows
	exec      *execution.Evaluator
	ledger    *notifications.Ledger
	audiences *audience.Audiences
	webhooks  *webhooks.Webhooks
}

// New makes a Reader.
func New(d Deps) *Reader {
	return &Reader{pool: d.Pool, clock: clock.New(d.Pool), flows: d.Flows, exec: d.Flows.Execution, ledger: d.Ledger, audiences: d.Audiences,
		webhooks: d.Webhooks}
}

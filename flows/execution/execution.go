// Package execution evaluates the nodes of a flow for enrollments. An Execution
// is one enrollment in progress: what was read of it, the facts that were found
// out, and the steps that result. Evaluate advances many, each to its end, to a wait
// or to a failing data source, and reads the facts that several of them need in one
// query. Simulate does the same for one profile with a clock of its own.
//
// It reads and decides, and writes nothing: the same facts give the same steps.
// Package flows writes the results.
package execution

import (
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/audience"
	"lemma/flows/admission"
	"lemma/message"
	"lemma/webhooks"
)

// Deps are what an Evaluator reads by.
type Deps struct {
	Pool      *pgxpool.Pool
	Audiences *audience.Audiences
	Templates *message.Templates
	Webhooks  *webhooks.Webhooks
	Log       *slog.Logger
}

// Config sets the delays after a source has failed.
type Config struct {
	Workers    int           // of the node: half of them may ask sources at a time
	BackOff    time.Duration // before a source that failed is asked again, doubled each time
	MaxBackOff time.Duration

	ConditionTime time.Duration // of one chunk: the rest is postponed
}

// Evaluator takes executions as far as they get.
type Evaluator struct {
	Versions Versions            // published versions, compiled
	Sources  *admission.Breakers // data sources that fail

	pool      *pgxpool.Pool
	audiences *audience.Audiences
	templates *message.Templates
	webhooks  *webhooks.Webhooks
	log       *slog.Logger
	cfg       Config
}

// NewEvaluator makes one.
func NewEvaluator(d Deps, cfg Config) *Evaluator {
	return &Evaluator{Sources: admission.NewBreakers(cfg.Workers), pool: d.Pool, audiences: d.Audiences, templates: d.Templates,
		webhooks: d.Webhooks, log: d.Log, cfg: cfg}
}

// Package execution evaluates the nodes of a flow for enrollments. An Execution is one
// enrollment in progress: what was read of it, the facts found for it, and the steps that
// result. Evaluate advances many, each to its end, to a wait or to a failing data source,
// and reads the facts that several need in one query. Simulate does the same for one
// profile with a simulated clock.
//
// It reads and decides, and writes nothing: the same facts give the same steps.
// Package flows writes the results.
package execution

import (
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/audience"
	"lemma/cache"
	"lemma/flows/admission"
	"lemma/flows/enrollment"
	"lemma/message"
	"lemma/webhooks"
)

// Deps are what an Evaluator uses.
type Deps struct {
	Pool      *pgxpool.Pool
	Audiences *audience.Audiences
	Templates *message.Templates
	Webhooks  *webhooks.Webhooks
	Log       *slog.Logger
	Metrics   *enrollment.Metrics
	Hook      *enrollment.Hook
}

// Config sets the delays after a source has failed.
type Config struct {
	Workers    int           // of the node: three quarters of them may query sources at a time, and half for one workspace
	BackOff    time.Duration // before a source that failed is queried again, doubled each time
	MaxBackOff time.Duration

	ConditionTime time.Duration // of one chunk: the rest is blocked
	EventTime     time.Duration // searching and counting the events of one chunk: the rest is left for the next chunk
	ChunkBytes    int           // of each kind of facts of one chunk, and of its results: the rest is left for the next chunk

	PublicURL func() string // under which links of simulated messages lead
}

// Evaluator advances executions as far as possible.
type Evaluator struct {
	Versions Versions            // published versions, compiled
	Sources  *admission.Breakers // data sources that fail

	searched  *cache.Cache[waitKey, time.Time] // up to when waits with many events were searched
	pool      *pgxpool.Pool
	audiences *audience.Audiences
	templates *message.Templates
	webhooks  *webhooks.Webhooks
	log       *slog.Logger
	cfg       Config
}

// NewEvaluator makes an Evaluator.
func NewEvaluator(d Deps, cfg Config) *Evaluator {
	return &Evaluator{Versions: newVersions(d.Hook), searched: cache.New[waitKey, time.Time](searchedMost, searchedShare),
		Sources: admission.NewBreakers(cfg.Workers, d.Metrics.SourceRefused), pool: d.Pool,
		audiences: d.Audiences, templates: d.Templates, webhooks: d.Webhooks, log: d.Log, cfg: cfg}
}

// Follow makes what is kept in memory keep to a history.
func (e *Evaluator) Follow(h *cache.History) {
	e.Versions.history = h
	e.searched.Follow(h)
}

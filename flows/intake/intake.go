// Package intake records events, direct requests and the profiles of polled audiences, and
// enrolls. It guarantees: a trigger enrolls a profile once, however often it is sent;
// every trigger that does not enroll is stored with its reason; and no enrollment misses
// an event that it waits for or that ends it.
//
// One transaction records the triggers of one workspace and applies them. It locks each
// flow in share mode, so that a publish, a pause or an archive falls wholly before or
// wholly after it. It compiles no version: see execution.Ready. Package execution decides
// what enrollments do next and flows writes it; intake only wakes the workers.
package intake

import (
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/audience"
	"lemma/clock"
	"lemma/flows/admission"
	"lemma/flows/enrollment"
	"lemma/flows/execution"
)

// Deps are what Intake uses.
type Deps struct {
	Pool      *pgxpool.Pool
	Audiences *audience.Audiences
	Execution *execution.Evaluator
	Waker     *enrollment.Waker
	Log       *slog.Logger
	Metrics   *enrollment.Metrics
	Hook      *enrollment.Hook
}

// Config has its limits.
type Config struct {
	Gather int           // single events that are recorded in one transaction, at most
	Lease  time.Duration // of a poll
}

// Intake records triggers and enrolls.
type Intake struct {
	pool      *pgxpool.Pool
	clock     *clock.Clock
	audiences *audience.Audiences
	exec      *execution.Evaluator
	waker     *enrollment.Waker
	log       *slog.Logger
	metrics   *enrollment.Metrics
	hook      *enrollment.Hook
	cfg       Config

	bulks  admission.Bulks                         // bulks that are being recorded
	gather *admission.Gatherer[*Trigger, Recorded] // single events entering one transaction
	polls  polls                                   // audiences that this process is reading

	crossings crossings

	conditionTime time.Duration
	mostOffered   int
	compileTime   time.Duration
	triggerBytes  int
	mostActive    int
}

// New makes an Intake.
func New(d Deps, cfg Config) *Intake {
	in := &Intake{pool: d.Pool, clock: clock.New(d.Pool), audiences: d.Audiences, exec: d.Execution, waker: d.Waker, log: d.Log,
		metrics: d.Metrics, hook: d.Hook, cfg: cfg, conditionTime: conditionTime, mostOffered: mostOffered, compileTime: conditionTime,
		triggerBytes: triggerBytes, mostActive: MaxActive}
	in.gather = admission.NewGatherer(cfg.Gather, in.recordChunk)
	return in
}

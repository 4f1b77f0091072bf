package flows

import (
	"context"
	"log/slog"
	"time"

	"lemma"
	"lemma/cache"
	"lemma/flows/enrollment"
	"lemma/flows/execution"
	"lemma/flows/intake"
	"lemma/message"
	"lemma/suppression"
)

func (c Config) withDefaults() Config {
	set := func(n *int, value int) {
		if *n == 0 {
			*n = value
		}
	}
	wait := func(d *time.Duration, value time.Duration) {
		if *d == 0 {
			*d = value
		}
	}
	set(&c.Workers, 4)
	set(&c.Chunk, 1000)
	set(&c.Gather, 256)
	set(&c.ChunkBytes, 8<<20)
	wait(&c.Poll, 250*time.Millisecond)
	wait(&c.Lease, time.Minute)
	wait(&c.BackOff, 5*time.Second)
	wait(&c.MaxBackOff, 10*time.Minute)
	wait(&c.ConditionTime, 2*time.Second)
	wait(&c.EventTime, 250*time.Millisecond)
	wait(&c.Retention, 30*24*time.Hour)
	if c.PublicURL == nil {
		c.PublicURL = func() string { return message.SampleHost }
	}
	return c
}

// New makes Flows.
func New(r Deps, cfg Config) *Flows {
	if r.Log == nil {
		r.Log = slog.Default()
	}
	if r.Metrics == nil {
		r.Metrics = enrollment.NewMetrics(nil)
	}
	if r.Hook == nil {
		r.Hook = &enrollment.Hook{}
	}
	f := &Flows{pool: r.Pool, ledger: r.Ledger, audiences: r.Audiences, templates: r.Templates, accounts: r.Providers, webhooks: r.Webhooks,
		forgetPage: forgetPage, moveTime: moveTime, routeTime: routeTime, eraseTime: eraseTime, traceTime: traceTime, tryTime: tryTime,
		topics: suppression.New(r.Pool), log: r.Log, metrics: r.Metrics, cfg: cfg.withDefaults(), waker: enrollment.NewWaker(), hook: r.Hook}
	f.retrySlots = newRetrySlots()
	f.lockWaits.workers = f.cfg.Workers
	f.Execution = execution.NewEvaluator(execution.Deps{Pool: r.Pool, Audiences: r.Audiences, Templates: r.Templates,
		Webhooks: r.Webhooks, Log: r.Log, Metrics: r.Metrics, Hook: r.Hook},
		execution.Config{Workers: f.cfg.Workers, BackOff: f.cfg.BackOff, MaxBackOff: f.cfg.MaxBackOff, ConditionTime: f.cfg.ConditionTime,
			EventTime: f.cfg.EventTime, ChunkBytes: f.cfg.ChunkBytes, PublicURL: f.cfg.PublicURL})
	f.Intake = intake.New(intake.Deps{Pool: r.Pool, Audiences: r.Audiences, Execution: f.Execution, Waker: f.waker, Log: r.Log,
		Metrics: r.Metrics, Hook: r.Hook},
		intake.Config{Gather: f.cfg.Gather, Lease: f.cfg.Lease})
	return f
}

// Follow makes what is kept in memory keep to a history.
func (f *Flows) Follow(h *cache.History) { f.Execution.Follow(h) }

// Retention is how long events and refusals are kept: the longest setting of all processes.
func (f *Flows) Retention(ctx context.Context) (kept time.Duration, err error) {
	err = f.pool.QueryRow(ctx, `select `+keptFor, f.cfg.Retention).Scan(&kept)
	return kept, lemma.Wrap(err, "read the retention of events")
}

package flows

import (
	"log/slog"
	"time"

	"github.com/google/uuid"
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
	set(&c.Lot, 1000)
	set(&c.Gather, 256)
	wait(&c.Poll, 250*time.Millisecond)
	wait(&c.Lease, time.Minute)
	wait(&c.BackOff, 5*time.Second)
	wait(&c.MaxBackOff, 10*time.Minute)
	wait(&c.Retention, 30*24*time.Hour)
	return c
}

// New makes the room.
func New(r Rooms, cfg Config) *Flows {
	if r.Log == nil {
		r.Log = slog.Default()
	}
	if r.Metrics == nil {
		r.Metrics = NewMetrics(nil)
	}
	f := &Flows{pool: r.Pool, ledger: r.Ledger, audiences: r.Audiences, templates: r.Templates, accounts: r.Providers, webhooks: r.Webhooks,
		log: r.Log, metrics: r.Metrics, cfg: cfg.withDefaults(), bell: newBell()}
	f.gather.queues = map[uuid.UUID]*queue{}
	return f
}

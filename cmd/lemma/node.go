package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"lemma/api"
	"lemma/audience"
	"lemma/campaigns"
	"lemma/flows"
	"lemma/message"
	"lemma/migrations"
	"lemma/notifications"
	"lemma/providers"
	"lemma/secrets"
	"lemma/sender"
	"lemma/webhooks"
	"lemma/workspaces"
)

// node is one process's rooms, wired together. Nodes are equal: any number of
// them may serve and work on one Postgres.
type node struct {
	cfg  Config
	log  *slog.Logger
	pool *pgxpool.Pool

	workspaces *workspaces.Workspaces
	providers  *providers.Providers
	audiences  *audience.Audiences
	templates  *message.Templates
	ledger     *notifications.Ledger
	campaigns  *campaigns.Campaigns
	webhooks   *webhooks.Webhooks
	flows      *flows.Flows
	sender     *sender.Sender
	api        http.Handler
	metrics    *prometheus.Registry
	counts     *connectionMetrics

	migrated atomic.Bool // the schema was seen complete

	river   *river.Client[pgx.Tx]
	loops   sync.WaitGroup
	stopped context.CancelFunc
}

// nodeOptions are what a node does not read from its Config.
type nodeOptions struct {
	Kinds  []sender.Kind // the carriers that it speaks to
	Limits audience.Options
}

// newNode builds the rooms from the bottom up, in the order of who may import whom.
func newNode(cfg Config, pool *pgxpool.Pool, box *secrets.Box, log *slog.Logger, o nodeOptions) (n *node, err error) {
	n = &node{cfg: cfg, log: log, pool: pool, metrics: newRegistry(pool)}
	n.counts = newConnectionMetrics(n.metrics)
	n.workspaces = workspaces.New(pool)
	n.providers = providers.New(pool, box, checkAccount(o.Kinds, cfg.mail(log)))
	n.providers.OnMove(movedAccount)
	o.Limits.Metrics = audience.NewMetrics(n.metrics)
	n.audiences = audience.New(pool, box, o.Limits)
	n.templates = message.New(pool)
	n.ledger = notifications.New(pool)
	n.campaigns = campaigns.New(campaigns.Rooms{Pool: pool, Ledger: n.ledger, Audiences: n.audiences, Templates: n.templates,
		Providers: n.providers, Log: log, Metrics: campaigns.NewMetrics(n.metrics)}, cfg.campaigns())
	n.webhooks = webhooks.New(webhooks.Rooms{Pool: pool, Box: box, Log: log, Metrics: webhooks.NewMetrics(n.metrics)},
		webhooks.Options{AllowPrivate: cfg.AllowPrivateWebhooks})
	n.flows = flows.New(flows.Rooms{Pool: pool, Ledger: n.ledger, Audiences: n.audiences, Templates: n.templates, Providers: n.providers,
		Webhooks: n.webhooks, Log: log, Metrics: flows.NewMetrics(n.metrics)}, flows.Config{Workers: cfg.FlowWorkers, Retention: cfg.EventRetention})
	n.webhooks.OnSettled(n.flows.WebhookSettled)
	n.sender, err = sender.New(sender.Rooms{Pool: pool, Ledger: n.ledger, Templates: n.templates, Providers: n.providers,
		Kinds: o.Kinds, Pause: n.pause, Recheck: n.recheck, Errors: n.campaigns.CheckTemplateErrors, Log: log, Metrics: sender.NewMetrics(n.metrics)}, cfg.sender())
	if err != nil {
		return nil, err
	}
	n.api = api.New(api.Rooms{Workspaces: n.workspaces, Providers: n.providers, Audiences: n.audiences, Templates: n.templates,
		Campaigns: n.campaigns, Flows: n.flows, Webhooks: n.webhooks, Ledger: n.ledger, Pool: pool}, api.Options{Log: log, Metrics: n.publicMetrics(), Ready: n.ready, Capabilities: capabilitiesOf(o.Kinds),
		Warnings: accountWarnings})
	return n, nil
}

// ready is what /readyz asks: the database answers, and has the schema that this
// version needs. The other guards are checked once, before any work begins. A
// schema that was complete once is not read again.
func (n *node) ready(ctx context.Context) error {
	if n.migrated.Load() {
		return n.pool.Ping(ctx)
	}
	err := migrations.Behind(ctx, n.pool)
	n.migrated.Store(err == nil)
	return err
}

// pause stops whatever an origin of notifications is: a flow, or a campaign.
func (n *node) pause(ctx context.Context, ws, origin uuid.UUID, reason, detail string) error {
	if found, err := n.flows.PauseFor(ctx, ws, origin, reason, detail); found || err != nil {
		return err
	}
	return n.campaigns.PauseFor(ctx, ws, origin, reason, detail)
}

// recheck reads again what an origin's audience has of profiles that have
// waited for long, whatever the origin is.
func (n *node) recheck(ctx context.Context, ws, origin, content uuid.UUID, profiles []string) (map[string][]sender.Standing, bool, error) {
	rows, found, err := n.campaigns.Recheck(ctx, ws, origin, profiles)
	if !found && err == nil {
		rows, found, err = n.flows.Recheck(ctx, ws, content, profiles)
	}
	if !found || err != nil {
		return nil, found, err
	}
	now := make(map[string][]sender.Standing, len(rows))
	for profile, of := range rows {
		for _, row := range of {
			now[profile] = append(now[profile], sender.Standing{Address: row.Email, OptedOut: row.OptedOut})
		}
	}
	return now, true, nil
}

// guard refuses to send when a constraint or a setting that a promise rests on
// is missing. Without the whole schema most of them are, and that alone is said.
func (n *node) guard(ctx context.Context, o migrations.GuardOptions) error {
	if err := migrations.Behind(ctx, n.pool); err != nil {
		return fmt.Errorf("refusing to send: %w", err)
	}
	guards, err := migrations.Guards(ctx, n.pool, o)
	if err != nil {
		return err
	}
	if err := migrations.Red(guards); err != nil {
		return fmt.Errorf("refusing to send, see `lemma doctor`: %w", err)
	}
	return nil
}

// work begins to answer bells and to run the loops.
func (n *node) work(ctx context.Context) error {
	workers := river.NewWorkers()
	n.sender.Register(workers)
	n.campaigns.Register(workers)
	cfg := n.cfg.sender()
	client, err := river.NewClient(riverpgxv5.New(n.pool), &river.Config{
		Workers: workers, Logger: riverLog(n.log),
		Queues: map[string]river.QueueConfig{
			notifications.QueueSend: {MaxWorkers: n.cfg.SendWorkers},
			campaigns.QueueFanout:   {MaxWorkers: n.cfg.FanoutWorkers},
		},
		FetchCooldown:     5 * time.Millisecond, // the default of 100 ms caps throughput at ten fetches a second
		FetchPollInterval: 500 * time.Millisecond,
		// Rescue must come after the longest job, and is a convenience: the
		// sweep rings for what a dead worker left.
		JobTimeout:                  sender.JobTimeout(cfg),
		RescueStuckJobsAfter:        sender.JobTimeout(cfg) + time.Minute,
		CompletedJobRetentionPeriod: time.Hour,
	})
	if err != nil {
		return fmt.Errorf("make river client: %w", err)
	}
	if err := client.Start(ctx); err != nil {
		return fmt.Errorf("start river: %w", err)
	}
	n.river = client
	loops, stop := context.WithCancel(ctx)
	n.stopped = stop
	for _, loop := range []func(context.Context){n.sender.Loop, n.campaigns.Loop, n.flows.Loop, n.webhooks.Loop, n.upkeep} {
		n.loops.Go(func() { loop(loops) })
	}
	return nil
}

// upkeep makes the partitions of months to come and forgets idempotency keys
// that are past their time.
func (n *node) upkeep(ctx context.Context) {
	t := time.NewTicker(time.Hour)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if err := migrations.Partitions(ctx, n.pool, time.Now()); err != nil {
			n.log.Error("make partitions", "error", err)
		}
		if _, err := api.Purge(ctx, n.pool); err != nil {
			n.log.Error("purge idempotency keys", "error", err)
		}
	}
}

// drain stops the work without leaving anything in doubt: open windows are
// called to their end and committed, the rest is given back.
func (n *node) drain(ctx context.Context) error {
	if n.river == nil {
		return nil
	}
	n.sender.Drain()
	n.campaigns.Drain()
	err := n.river.Stop(ctx)
	n.stopped()
	n.loops.Wait()
	n.sender.Close()
	n.audiences.Close()
	return err
}

// riverLog is the log as River may use it: warnings and errors, since a line
// for every job would be one for every bell.
func riverLog(log *slog.Logger) *slog.Logger { return slog.New(quiet{log.Handler()}) }

// quiet passes on warnings and worse.
type quiet struct{ slog.Handler }

func (q quiet) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= slog.LevelWarn && q.Handler.Enabled(ctx, l)
}

func (q quiet) WithAttrs(a []slog.Attr) slog.Handler { return quiet{q.Handler.WithAttrs(a)} }
func (q quiet) WithGroup(name string) slog.Handler   { return quiet{q.Handler.WithGroup(name)} }

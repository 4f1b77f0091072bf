// Package server runs one process of Lemma: the HTTP API, the workers that send,
// and the loops that move flows and campaigns. It wires the packages together
// and contains no rules of its own.
//
// Processes are equal. Any number of them may serve and work on one Postgres.
// All state is in Postgres, so a process that is killed loses nothing: another
// one takes over its leases when they expire.
package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"lemma"
	"lemma/api"
	"lemma/api/idempotency"
	"lemma/archive"
	"lemma/audience"
	"lemma/audit"
	"lemma/blobs"
	"lemma/cache"
	"lemma/campaigns"
	"lemma/clock"
	"lemma/deliveries"
	"lemma/direct"
	"lemma/events"
	"lemma/exports"
	"lemma/flows"
	"lemma/flows/enrollment"
	"lemma/flows/query"
	"lemma/hooks"
	"lemma/lifecycle"
	"lemma/links"
	"lemma/loop"
	"lemma/message"
	"lemma/migrations"
	"lemma/notifications"
	"lemma/providers"
	"lemma/retention"
	"lemma/secrets"
	"lemma/sender"
	"lemma/settings"
	"lemma/suppression"
	"lemma/tracking"
	"lemma/unsubscribe"
	"lemma/webhooks"
	"lemma/workspaces"
)

// drainTimeout bounds how long the workers may take to finish their open windows.
const drainTimeout = 45 * time.Second

// Deps are what a process needs from outside.
type Deps struct {
	Pool     *pgxpool.Pool
	Reserved *pgxpool.Pool // see OpenReserved; Pool when nil
	Box      *secrets.Box
	Log      *slog.Logger
	Kinds    []sender.Kind // the carriers; those of kindsOf when nil
	Blobs    blobs.Store   // of exports; nil: there are none
}

// Server is one process: its packages, wired together.
type Server struct {
	Pool       *pgxpool.Pool
	reserved   *pgxpool.Pool
	Settings   *settings.Settings
	Workspaces *workspaces.Workspaces
	Providers  *providers.Providers
	Audiences  *audience.Audiences
	Templates  *message.Templates
	Ledger     *notifications.Ledger
	Direct     *direct.Direct
	Campaigns  *campaigns.Campaigns
	Webhooks   *webhooks.Webhooks
	Flows      *flows.Flows
	FlowReader *query.Reader
	Links      *links.Links
	Pages      *unsubscribe.Pages
	Tracking   *tracking.Tracking
	Checker    *suppression.Checker // of the sender
	Sender     *sender.Sender
	Hooks      *hooks.Hooks
	Deliveries *deliveries.Deliveries
	Retention  *retention.Retention
	Exports    *exports.Exports
	API        http.Handler // calls newAPI

	newAPI      func() http.Handler // made once, by the processes that serve it: to read openapi.yaml takes long
	cfg         Config
	log         *slog.Logger
	metrics     *prometheus.Registry
	connections *connectionMetrics

	repairs      []clock.Repair // of times that are too far ahead
	clockMetrics *clock.Metrics

	readiness readiness

	river     *river.Client[pgx.Tx]
	jobs      *pgxpool.Pool // of river
	loops     sync.WaitGroup
	stopLoops context.CancelFunc
}

// New wires the packages in the order of their imports. It starts nothing.
func New(d Deps, cfg Config) (s *Server, err error) {
	cfg = cfg.withDefaults()
	d.Log = api.BoundedLog(d.Log)
	s = &Server{cfg: cfg, log: d.Log, Pool: d.Pool, reserved: cmp.Or(d.Reserved, d.Pool), metrics: newRegistry(d.Pool)}
	s.connections = newConnectionMetrics(s.metrics)
	s.Settings = settings.New(settings.Deps{Pool: d.Pool, Own: cfg.shared(), Log: d.Log, Metrics: settings.NewMetrics(s.metrics)})
	cfg.Carriers.Log, cfg.Carriers.PublicURL = d.Log, s.Settings.PublicURL
	if d.Kinds == nil {
		d.Kinds = kindsOf(cfg.Carriers)
	}
	s.Workspaces = workspaces.New(d.Pool)
	s.Workspaces.AuthenticateOn(s.reserved)
	kinds := carriers(d.Kinds)
	s.Providers = providers.New(d.Pool, d.Box, kinds.check)
	s.Providers.OnMove(kinds.moves)
	s.Providers.OnChannel(kinds.channels)
	s.Providers.OnReceive(kinds.receives)
	s.Hooks = hooks.New(hooks.Deps{Pool: d.Pool, Providers: s.Providers, Kinds: d.Kinds, PublicURLs: s.Settings.PublicURLs, Log: d.Log,
		Metrics: hooks.NewMetrics(s.metrics)})
	s.Deliveries = deliveries.New(d.Pool, d.Log, deliveries.NewMetrics(s.metrics))
	cfg.Sources.Metrics = audience.NewMetrics(s.metrics)
	s.Audiences = audience.New(d.Pool, d.Box, cfg.Sources)
	s.Templates = message.New(d.Pool)
	s.Ledger = notifications.New(d.Pool)
	s.Links = links.New(d.Pool, d.Box, links.NewMetrics(s.metrics))
	suppressions := suppression.New(d.Pool)
	s.Pages = unsubscribe.New(unsubscribe.Deps{Pool: d.Pool, Links: s.Links, Suppressions: suppressions, Workspaces: s.Workspaces,
		PublicURL: s.Settings.PublicURL, Log: d.Log, Metrics: unsubscribe.NewMetrics(s.metrics)})
	s.Tracking = tracking.New(tracking.Deps{Pool: d.Pool, Links: s.Links, Workspaces: s.Workspaces, PublicURL: s.Settings.PublicURL,
		Log: d.Log, Metrics: tracking.NewMetrics(s.metrics)})
	cfg.Exports.PublicURL = s.Settings.PublicURL
	s.Exports = exports.New(exports.Deps{Pool: d.Pool, Links: s.Links, Log: d.Log, Metrics: exports.NewMetrics(s.metrics),
		Blobs: blobs.New(blobs.Deps{Pool: d.Pool, Store: d.Blobs, At: cfg.Settings["LEMMA_BLOBS"], Log: d.Log,
			Metrics: blobs.NewMetrics(s.metrics)})}, cfg.Exports)
	if d.Blobs != nil && cfg.Archive {
		cfg.Retention.Archive = archive.New(d.Pool, s.Exports.Blobs).Store
	}
	s.Retention = retention.New(d.Pool, d.Log, retention.NewMetrics(s.metrics), cfg.Retention)
	cfg.Campaigns.PublicURL, cfg.Flows.PublicURL = s.Settings.PublicURL, s.Settings.PublicURL
	s.Campaigns = campaigns.New(campaigns.Deps{Pool: d.Pool, Ledger: s.Ledger, Audiences: s.Audiences, Templates: s.Templates,
		Providers: s.Providers, Log: d.Log, Metrics: campaigns.NewMetrics(s.metrics)}, cfg.Campaigns)
	s.Webhooks = webhooks.New(webhooks.Deps{Pool: d.Pool, Box: d.Box, Log: d.Log, Metrics: webhooks.NewMetrics(s.metrics)}, cfg.Webhooks)
	s.Flows = flows.New(flows.Deps{Pool: d.Pool, Ledger: s.Ledger, Audiences: s.Audiences, Templates: s.Templates, Providers: s.Providers,
		Webhooks: s.Webhooks, Log: d.Log, Metrics: enrollment.NewMetrics(s.metrics)}, cfg.Flows)
	s.FlowReader = query.New(query.Deps{Pool: d.Pool, Flows: s.Flows, Ledger: s.Ledger, Audiences: s.Audiences, Webhooks: s.Webhooks})
	s.Webhooks.OnSettled(s.Flows.WebhookSettled)
	s.Direct = direct.New(direct.Deps{Pool: d.Pool, Ledger: s.Ledger, Templates: s.Templates, Providers: s.Providers, Audiences: s.Audiences,
		Log: d.Log, Metrics: direct.NewMetrics(s.metrics), PublicURL: s.Settings.PublicURL})
	s.Checker = suppression.NewChecker(d.Pool, suppression.NewMetrics(s.metrics), cfg.Checker)
	s.Sender, err = sender.New(sender.Deps{Pool: d.Pool, Ledger: s.Ledger, Templates: s.Templates, Providers: s.Providers, Kinds: d.Kinds,
		Pause: s.pause, Recheck: s.recheck, Errors: s.Campaigns.CheckTemplateErrors, Ended: s.batchEnded, Pages: s.Pages,
		Tracking: s.Tracking, Log: d.Log, Metrics: sender.NewMetrics(s.metrics), Checker: s.Checker}, cfg.Sender)
	if err != nil {
		return nil, err
	}
	for _, kept := range []interface{ Follow(h *cache.History) }{s.Templates, s.Links, s.Direct, s.Sender, s.Hooks, s.Flows} {
		kept.Follow(cfg.History)
	}
	s.repairs, s.clockMetrics = s.allRepairs(), clock.NewMetrics(s.metrics)
	refused := api.NewMetrics(s.metrics)
	s.newAPI = sync.OnceValue(func() http.Handler {
		return api.New(api.Deps{Workspaces: s.Workspaces, Providers: s.Providers, Audiences: s.Audiences, Templates: s.Templates,
			Campaigns: s.Campaigns, Flows: s.Flows, FlowReader: s.FlowReader, Webhooks: s.Webhooks, Ledger: s.Ledger,
			Direct: s.Direct, Pool: d.Pool, Hooks: s.Hooks,
			Suppressions: suppressions, Links: s.Links, Pages: s.Pages, Tracking: s.Tracking, Sender: s.Sender,
			Exports: s.Exports, Audit: audit.New(d.Pool)},
			api.Options{Log: d.Log, PublicURL: s.Settings.PublicURL, Requests: max(1, cfg.MaxConnections/2), Metrics: s.publicMetrics(),
				Refused: refused, Known: known, Ready: s.ready, Capabilities: kinds.capabilities, Warnings: kinds.warnings})
	})
	s.API = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.newAPI().ServeHTTP(w, r) })
	return s, nil
}

// Close closes the connections to the database.
func (s *Server) Close() {
	s.reserved.Close()
	if s.jobs != nil {
		s.jobs.Close()
	}
	s.Pool.Close()
}

// pause pauses the origin of notifications, which is a flow or a campaign. Direct
// notifications are not paused: they wait for their provider until they expire.
func (s *Server) pause(ctx context.Context, ws, origin, provider uuid.UUID, cause lifecycle.Cause) (paused bool, err error) {
	if notifications.IsDirect(origin) {
		return false, nil
	}
	if found, paused, err := s.Flows.PauseFor(ctx, ws, origin, provider, cause); found || err != nil {
		return paused, err
	}
	return s.Campaigns.PauseFor(ctx, ws, origin, cause)
}

// batchEnded makes the campaign of a batch that has ended be checked.
func (s *Server) batchEnded(ws, origin uuid.UUID) {
	if !notifications.IsDirect(origin) {
		s.Campaigns.BatchEnded(ws, origin)
	}
}

// recheck reads profiles that have waited for long from the audience of their
// origin, which is a flow, a campaign or a direct request.
func (s *Server) recheck(
	ctx context.Context, ws, origin, content uuid.UUID, channel lemma.Channel, profiles []string, yield func(string, sender.AudienceRow),
) (found bool, err error) {
	each := func(row audience.Row) error {
		yield(row.Key, rowNow(row, channel))
		return nil
	}
	if notifications.IsDirect(origin) {
		return s.Direct.Recheck(ctx, ws, content, profiles, each)
	}
	found, err = s.Campaigns.Recheck(ctx, ws, origin, profiles, each)
	if !found && err == nil {
		found, err = s.Flows.Recheck(ctx, ws, content, profiles, each)
	}
	return found, err
}

// rowNow is a row as the sender compares it.
func rowNow(row audience.Row, channel lemma.Channel) sender.AudienceRow {
	now := sender.AudienceRow{OptedOut: row.OptedOut}
	for _, a := range row.Addresses(nil, channel) {
		if a.Canonical != "" {
			now.Addresses = append(now.Addresses, a.Canonical)
		}
	}
	return now
}

// Start checks the guards and starts the workers and loops. They outlive ctx:
// Stop ends them.
func (s *Server) Start(ctx context.Context) error {
	if err := s.checkGuards(ctx); err != nil {
		return err
	}
	return s.StartWorkers(context.WithoutCancel(ctx))
}

// checkGuards returns an error when a constraint or a setting that a guarantee
// depends on is missing. On an incomplete schema it names only that, since most
// guards would fail for this reason.
func (s *Server) checkGuards(ctx context.Context) error {
	if err := migrations.Behind(ctx, s.Pool); err != nil {
		return fmt.Errorf("refusing to send: %w", err)
	}
	guards, err := migrations.Guards(ctx, s.Pool, migrations.GuardOptions{})
	if err != nil {
		return err
	}
	return lemma.Wrap(migrations.Red(guards), "refusing to send, see `lemma doctor`")
}

// StartWorkers is Start without the guards, for databases that may be lost.
func (s *Server) StartWorkers(ctx context.Context) error {
	if err := s.Settings.Sync(ctx); err != nil {
		return err
	}
	workers := river.NewWorkers()
	s.Sender.Register(workers)
	s.Campaigns.Register(workers)
	jobs, err := openJobs(ctx, s.Pool, s.cfg.History)
	if err != nil {
		return err
	}
	s.jobs = jobs
	client, err := river.NewClient(riverpgxv5.New(jobs), s.riverConfig(workers, clock.ForJobs(ctx, jobs)))
	if err != nil {
		return fmt.Errorf("create River client: %w", err)
	}
	if err := client.Start(ctx); err != nil {
		return fmt.Errorf("start River client: %w", err)
	}
	s.river = client
	loops, stop := context.WithCancel(ctx)
	s.stopLoops = stop
	for _, run := range []func(context.Context){s.Sender.Loop, s.Campaigns.Loop, s.Flows.Loop, s.Webhooks.Loop, s.Deliveries.Loop,
		s.Tracking.Loop, s.Retention.Loop, s.Exports.Loop, s.Settings.Loop, s.follow, s.storeFilters, s.upkeep,
		s.repairTimes} {
		s.loops.Go(func() { run(loops) })
	}
	return nil
}

func (s *Server) riverConfig(workers *river.Workers, now *clock.Jobs) *river.Config {
	timeout := sender.JobTimeout(s.cfg.Sender)
	return &river.Config{
		Workers: workers, Logger: riverLog(s.log),
		Queues: map[string]river.QueueConfig{
			notifications.QueueSend:   {MaxWorkers: s.cfg.SendWorkers},
			notifications.QueueDirect: {MaxWorkers: s.cfg.DirectWorkers},
			campaigns.QueueFanout:     {MaxWorkers: s.cfg.FanoutWorkers},
		},
		FetchCooldown:     5 * time.Millisecond, // the default of 100 ms caps throughput at ten fetches a second
		FetchPollInterval: 500 * time.Millisecond,
		// Rescue must come after the longest job. It is not needed: the sweep
		// enqueues a job for each batch that a crashed worker left.
		JobTimeout:                  timeout,
		RescueStuckJobsAfter:        timeout + time.Minute,
		CompletedJobRetentionPeriod: time.Hour,
		Test:                        river.TestConfig{Time: now}, // the only way to set it
	}
}

// storeFilters stores filters of long lists of suppressions.
func (s *Server) storeFilters(ctx context.Context) {
	loop.Every(ctx, s.cfg.StoreFilters, s.Checker.StoreFilters, func(err error) {
		s.log.Error("filters of suppressions are not stored, and addresses are looked up", "error", err)
	})
}

// upkeep deletes expired idempotency keys and old provider events that match no
// notification, and drops old periods of the keys of direct notifications.
func (s *Server) upkeep(ctx context.Context) {
	loop.Every(ctx, time.Hour, func(ctx context.Context) error {
		_, err := idempotency.Purge(ctx, s.Pool)
		_, old := events.Purge(ctx, s.Pool)
		return errors.Join(s.Direct.BeginPeriod(ctx), err, old)
	}, func(err error) { s.log.Error("hourly upkeep failed", "error", err) })
}

// Run serves until ctx ends, and then stops. The workers stop while the listeners shut down, since
// these wait for requests whose clients may be slow.
func (s *Server) Run(ctx context.Context, serve func(context.Context) error) error {
	stop := sync.OnceValue(s.Stop)
	if s.river != nil {
		context.AfterFunc(ctx, func() { _ = stop() }) // its error is returned below
	}
	err := errors.Join(serve(ctx), stop())
	s.log.Info("stopped")
	return err
}

// Stop stops the workers and loops within 45 seconds. See Drain.
func (s *Server) Stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), drainTimeout)
	defer cancel()
	return s.Drain(ctx)
}

// Drain stops the workers and loops without leaving an outcome unknown: the
// messages of open windows are sent and committed, other batches are returned.
// It does nothing when nothing was started.
func (s *Server) Drain(ctx context.Context) error {
	if s.river == nil {
		return nil
	}
	s.Sender.Drain()
	s.Campaigns.Drain()
	err := s.river.Stop(ctx)
	s.stopLoops()
	if !s.loopsEnd(ctx) {
		return errors.Join(err, fmt.Errorf("stop the loops: %w", ctx.Err()))
	}
	s.Sender.Close()
	s.Audiences.Close()
	s.jobs.Close()
	return err
}

// loopsEnd reports whether the loops have ended before ctx.
func (s *Server) loopsEnd(ctx context.Context) bool {
	ended := make(chan struct{})
	go func() { s.loops.Wait(); close(ended) }()
	select {
	case <-ended:
		return true
	case <-ctx.Done():
		return false
	}
}

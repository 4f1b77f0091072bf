package main

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"time"

	"lemma"
	"lemma/api"
	"lemma/audience"
	"lemma/migrations"
	"lemma/providers"
	"lemma/sender"
	"lemma/sender/smtp"
)

// drainFor is how long a worker may take to finish its open windows.
const drainFor = 45 * time.Second

type serveCommand struct {
	Work bool `help:"Send as well, in the same process."`
}

func (s *serveCommand) run(ctx context.Context, cfg Config, _ io.Writer) error {
	n, err := openNode(ctx, cfg)
	if err != nil {
		return err
	}
	defer n.pool.Close()
	if s.Work {
		if err := n.start(ctx); err != nil {
			return err
		}
	}
	n.log.Info("serving", "listen", cfg.Listen, "metrics", cfg.MetricsListen, "work", s.Work)
	err = serve(ctx, n.log, n.counts, n.listeners()...)
	return n.end(err)
}

type workCommand struct{}

func (workCommand) run(ctx context.Context, cfg Config, _ io.Writer) error {
	n, err := openNode(ctx, cfg)
	if err != nil {
		return err
	}
	defer n.pool.Close()
	if err := n.start(ctx); err != nil {
		return err
	}
	n.log.Info("working", "node", n.sender.Node(), "workers", cfg.SendWorkers)
	if cfg.WorkListen == "" {
		<-ctx.Done()
		return n.end(nil)
	}
	return n.end(serve(ctx, n.log, n.counts, endpoint{name: "work", address: cfg.WorkListen, handler: watching(n), most: opsConnections}))
}

// openNode makes a node as the configuration says, on a database that is
// migrated already.
func openNode(ctx context.Context, cfg Config) (*node, error) {
	box, err := cfg.box()
	if err != nil {
		return nil, err
	}
	pool, err := openPool(ctx, cfg)
	if err != nil {
		return nil, err
	}
	log := cfg.logger(os.Stderr)
	return newNode(cfg, pool, box, log, nodeOptions{Kinds: carriers(cfg.mail(log)),
		Limits: cfg.sources(0)})
}

// sources are the limits of data sources. query is how long a test may take; 0: the default.
func (c Config) sources(query time.Duration) audience.Options {
	return audience.Options{AllowPrivate: c.AllowPrivateSources, AllowWriting: c.AllowWritingSources, FetchTimeout: c.SourceTimeout, QueryTimeout: query}
}

// carriers are the kinds that this program speaks to.
func carriers(o smtp.Options) []sender.Kind { return []sender.Kind{smtp.Kind(o)} }

// mail is what the operator decides about connections to mail servers.
func (c Config) mail(log *slog.Logger) smtp.Options {
	return smtp.Options{AllowPrivate: c.AllowPrivateProviders, Log: log}
}

// start checks the guards and begins to work. The work outlives ctx: it is
// ended by end, which drains it.
func (n *node) start(ctx context.Context) error {
	if err := n.guard(ctx, migrations.GuardOptions{}); err != nil {
		return err
	}
	return n.work(context.WithoutCancel(ctx))
}

func (n *node) end(err error) error {
	stop, cancel := context.WithTimeout(context.Background(), drainFor)
	defer cancel()
	if drained := n.drain(stop); err == nil {
		err = drained
	}
	n.log.Info("stopped")
	return err
}

// watching is what a worker without an API answers.
func watching(n *node) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if err := n.ready(r.Context()); err != nil {
			http.Error(w, "not ready", http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "ok\n")
	})
	mux.Handle("GET /metrics", metricsHandler(n.metrics))
	return mux
}

func capabilitiesOf(kinds []sender.Kind) func(string) api.Capabilities {
	known := map[string]api.Capabilities{}
	for _, k := range kinds {
		known[k.Name] = api.Capabilities(k.Capabilities)
	}
	return func(kind string) api.Capabilities { return known[kind] }
}

// checkAccount lets a provider be saved only when one of the node's carriers
// could be opened with what it says.
func checkAccount(kinds []sender.Kind, o smtp.Options) providers.Check {
	return func(kind string, config, secret json.RawMessage) error {
		known := slices.ContainsFunc(kinds, func(k sender.Kind) bool { return k.Name == kind })
		switch {
		case !known:
			return lemma.Fault("/kind", "unknown_kind", "the kinds of provider are: smtp")
		case kind == "smtp":
			return smtp.Check(config, secret, o)
		}
		return nil
	}
}

// movedAccount names what decides where a provider's secrets are sent. Kinds of
// which nothing is known have none.
func movedAccount(kind string, before, after, secret json.RawMessage) []string {
	if kind != "smtp" {
		return nil
	}
	return smtp.Moves(before, after, secret)
}

func accountWarnings(kind string, config json.RawMessage) []string {
	if kind != "smtp" {
		return nil
	}
	return smtp.Warnings(config)
}

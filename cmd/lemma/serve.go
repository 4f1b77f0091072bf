package main

import (
	"context"
	"io"
	"log/slog"
	"os"

	"lemma/cache"
	"lemma/server"
)

type serveCommand struct {
	Work bool `help:"Send as well, in the same process."`
}

func (s *serveCommand) run(ctx context.Context, cfg Config, _ io.Writer) error {
	log, flush, err := cfg.reported(cfg.logger(os.Stderr))
	if err != nil {
		return err
	}
	defer flush()
	server.SetDefaultLog(log)
	n, err := openServer(ctx, cfg, log, s.Work, s.transactionIdle())
	if err != nil {
		return err
	}
	defer n.Close()
	if s.Work {
		if err := n.Start(ctx); err != nil {
			return err
		}
	}
	return n.Run(ctx, n.ServeAPI)
}

// transactionIdle is short for a process that only serves the API.
func (s *serveCommand) transactionIdle() string {
	if s.Work {
		return server.IdleOfWorkers
	}
	return server.IdleOfAPI
}

type workCommand struct{}

func (workCommand) run(ctx context.Context, cfg Config, _ io.Writer) error {
	log, flush, err := cfg.reported(cfg.logger(os.Stderr))
	if err != nil {
		return err
	}
	defer flush()
	server.SetDefaultLog(log)
	n, err := openServer(ctx, cfg, log, true, server.IdleOfWorkers)
	if err != nil {
		return err
	}
	defer n.Close()
	if err := n.Start(ctx); err != nil {
		return err
	}
	return n.Run(ctx, n.ServeWork)
}

// openServer wires a process by the settings, on a database that exists.
func openServer(ctx context.Context, cfg Config, log *slog.Logger, works bool, transactionIdle string) (*server.Server, error) {
	box, err := cfg.box()
	if err != nil {
		return nil, err
	}
	store, err := cfg.blobs()
	if err != nil {
		return nil, err
	}
	config := cfg.server()
	config.TransactionIdle, config.Settings, config.History = transactionIdle, cfg.shared(works), &cache.History{}
	pool, err := server.OpenPool(ctx, config)
	if err != nil {
		return nil, err
	}
	reserved, err := server.OpenReserved(ctx, pool)
	if err != nil {
		pool.Close()
		return nil, err
	}
	s, err := server.New(server.Deps{Pool: pool, Reserved: reserved, Box: box, Blobs: store, Log: log}, config)
	if err == nil {
		s.WarnOfSkew(ctx)
		s.WarnOfCollation(ctx)
	}
	return s, err
}

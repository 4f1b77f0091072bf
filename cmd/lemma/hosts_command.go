package main

import (
	"context"
	"io"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/cmd/lemma/remote"
	"lemma/workspaces"
)

type hostsCommand struct {
	List    hostsListCommand    `cmd:"" help:"List the hosts of tracking URLs, and the workspaces to which they belong."`
	Release hostsReleaseCommand `cmd:"" help:"Take a host from its workspace, also out of its tracking_url, so that another can use it. Links of the first no longer work there once another does."`
}

type hostsListCommand struct{}

func (hostsListCommand) run(ctx context.Context, c Config, out io.Writer) error {
	return withMigrated(ctx, c, func(pool *pgxpool.Pool) error {
		all, err := workspaces.Hosts(ctx, pool)
		if err != nil {
			return err
		}
		return remote.Table(out, "HOST|WORKSPACE|SINCE", all, func(h workspaces.Host) []string {
			return []string{h.Host, h.Workspace, h.CreatedAt.UTC().Format(time.RFC3339)}
		})
	})
}

type hostsReleaseCommand struct {
	Host string `arg:"" help:"The host, such as links.shop.example."`
}

func (r hostsReleaseCommand) run(ctx context.Context, c Config, _ io.Writer) error {
	return withMigrated(ctx, c, func(pool *pgxpool.Pool) error { return workspaces.ReleaseHost(ctx, pool, r.Host) })
}

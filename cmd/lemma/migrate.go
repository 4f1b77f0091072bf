package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"lemma/migrations"
	"lemma/server"
)

// migrateCommand migrates the schema, or lists the migrations.
type migrateCommand struct {
	Up     migrateUpCommand     `cmd:"" help:"Apply missing migrations. Several processes may do so at the same time."`
	Status migrateStatusCommand `cmd:"" help:"List the migrations and the time when each was applied."`
}

type migrateUpCommand struct{}

func (migrateUpCommand) run(ctx context.Context, c Config, out io.Writer) error {
	pool, err := server.OpenPool(ctx, c.server())
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := migrations.Up(ctx, pool); err != nil {
		return err
	}
	fmt.Fprintln(out, "the schema is up to date")
	return nil
}

type migrateStatusCommand struct{}

func (migrateStatusCommand) run(ctx context.Context, c Config, out io.Writer) error {
	pool, err := server.OpenPool(ctx, c.server())
	if err != nil {
		return err
	}
	defer pool.Close()
	steps, err := migrations.Status(ctx, pool)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, s := range steps {
		applied := "not applied"
		if s.AppliedAt != nil {
			applied = s.AppliedAt.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(w, "%s\t%s\n", s.Name, applied)
	}
	return w.Flush()
}

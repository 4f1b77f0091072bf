package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"lemma/migrations"
)

// migrateCommand changes the schema, or tells how far it is.
type migrateCommand struct {
	Up     migrateUpCommand     `cmd:"" help:"Apply what is missing. Safe from many nodes at once."`
	Status migrateStatusCommand `cmd:"" help:"List the migrations and when each was applied."`
}

type migrateUpCommand struct{}

func (migrateUpCommand) run(ctx context.Context, c Config, out io.Writer) error {
	if err := migrateUp(ctx, c); err != nil {
		return err
	}
	fmt.Fprintln(out, "the schema is up to date")
	return nil
}

type migrateStatusCommand struct{}

func (migrateStatusCommand) run(ctx context.Context, c Config, out io.Writer) error {
	pool, err := openPool(ctx, c)
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

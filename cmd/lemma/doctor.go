package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"lemma/migrations"
)

// doctorCommand prints every guard and fails when one is red.
type doctorCommand struct {
	AllowNoFsync bool `name:"allow-no-fsync" help:"Be content with fsync off: for a database that may be lost."`
}

func (d doctorCommand) run(ctx context.Context, c Config, out io.Writer) error {
	pool, err := openPool(ctx, c)
	if err != nil {
		return err
	}
	defer pool.Close()
	guards, err := migrations.Guards(ctx, pool, migrations.GuardOptions{AllowNoFsync: d.AllowNoFsync})
	if err != nil {
		return err
	}
	red, err := printGuards(out, guards)
	if err != nil {
		return err
	}
	if red == 0 {
		return testSources(ctx, c, pool, out)
	}
	return fmt.Errorf("%d of %d guards are red: Lemma refuses to send on this database", red, len(guards))
}

func printGuards(out io.Writer, guards []migrations.Guard) (red int, err error) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, g := range guards {
		state := "ok"
		if !g.OK {
			state, red = "RED", red+1
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", state, g.Name, g.Promise)
		if !g.OK {
			fmt.Fprintf(w, "\t\t%s\n", g.Why)
		}
	}
	return red, w.Flush()
}

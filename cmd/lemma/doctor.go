package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/migrations"
)

// doctorCommand prints every guard, whether every secret opens, and which
// connections are not protected. It fails when a guard is red or a secret does
// not open.
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
	var faults []error
	if red > 0 {
		faults = append(faults, fmt.Errorf("%d of %d guards are red: Lemma refuses to send on this database", red, len(guards)))
	}
	faults = append(faults, inspect(ctx, c, pool, out))
	if red == 0 {
		faults = append(faults, testSources(ctx, c, pool, out))
	}
	return errors.Join(faults...)
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

// finding is one line of what is looked at beside the guards.
type finding struct{ state, name, text string }

// inspect looks at what tenants have entered. On a database without the tables
// there is nothing to look at, and the guards say so.
func inspect(ctx context.Context, c Config, pool *pgxpool.Pool, out io.Writer) error {
	var migrated bool
	err := pool.QueryRow(ctx, `
		select count(*) = 3 from information_schema.columns where table_schema = current_schema()
		and (table_name, column_name) in (('data_sources', 'tls'), ('providers', 'secrets'), ('webhook_endpoints', 'secret'))`).Scan(&migrated)
	if err != nil || !migrated {
		return err
	}
	found, shut, err := secretFindings(ctx, c, pool)
	if err != nil {
		return err
	}
	unprotected, err := connectionFindings(ctx, pool)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, f := range append(found, unprotected...) {
		fmt.Fprintf(w, "%s\t%s\t%s\n", f.state, f.name, f.text)
	}
	if err := w.Flush(); err != nil || shut == 0 {
		return err
	}
	return fmt.Errorf("%d secrets open with none of the keys in LEMMA_SECRET_KEY", shut)
}

// secretFindings opens every sealed text.
func secretFindings(ctx context.Context, c Config, pool *pgxpool.Pool) (list []finding, shut int, err error) {
	if c.SecretKey == "" {
		return []finding{{"warn", "secrets", "not checked: LEMMA_SECRET_KEY is not set"}}, 0, nil
	}
	box, err := c.box()
	if err != nil {
		return nil, 0, err
	}
	for _, s := range stores(pool, box) {
		r, err := box.Inspect(ctx, s)
		if err != nil {
			return nil, 0, err
		}
		f := finding{"ok", "secrets of " + s.Table, fmt.Sprintf("all %d open with the first key", r.Rows)}
		switch {
		case len(r.Shut) > 0:
			f.state, f.text = "RED", fmt.Sprintf("%d open, with no key open %s", r.Rows-len(r.Shut), named(s, r.Shut))
		case r.Old > 0:
			f.state, f.text = "warn", fmt.Sprintf("all %d open, %d of them with another key than the first: run lemma secrets reseal", r.Rows, r.Old)
		}
		list, shut = append(list, f), shut+len(r.Shut)
	}
	return list, shut, nil
}

// connectionFindings names data sources and providers whose connections
// somebody on the way could read or intercept.
func connectionFindings(ctx context.Context, pool *pgxpool.Pool) (list []finding, err error) {
	for _, open := range []func(context.Context, *pgxpool.Pool) ([]unprotected, int, error){unprotectedSources, unprotectedProviders} {
		found, more, err := open(ctx, pool)
		if err != nil {
			return nil, err
		}
		for _, u := range found {
			list = append(list, finding{"warn", u.name(), u.warning})
		}
		if more > 0 {
			list = append(list, finding{"warn", "...", fmt.Sprintf("and %d more", more)})
		}
	}
	return list, nil
}

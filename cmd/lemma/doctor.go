package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/cmd/lemma/remote"
	"lemma/migrations"
	"lemma/server"
)

// doctorCommand prints the state of the constraints and settings that the guarantees depend
// on (guards), of stored secrets, of connections, of partitions and their locks, of the settings
// of all processes, of the collation, of the clock and of data sources. It fails when a guard is
// red or a secret is unreadable.
type doctorCommand struct {
	AllowNoFsync bool `name:"allow-no-fsync" help:"Allow fsync=off, for a database that may be lost."`
}

func (d doctorCommand) run(ctx context.Context, c Config, out io.Writer) error {
	pool, err := server.OpenPool(ctx, c.server())
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
		faults = append(faults, fmt.Errorf("%d of %d constraints and settings are missing or wrong: Lemma refuses to send on this database",
			red, len(guards)))
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

// finding is one line of output beside the guards.
type finding struct{ state, name, text string }

// inspect checks what tenants have entered. It does nothing on a database without
// the tables, since the guards report that.
func inspect(ctx context.Context, c Config, pool *pgxpool.Pool, out io.Writer) error {
	var migrated bool
	err := pool.QueryRow(ctx, `
		select count(*) = 4 from information_schema.columns where table_schema = current_schema()
		and (table_name, column_name) in (('data_sources', 'tls'), ('providers', 'secrets'), ('webhook_endpoints', 'secret'),
			('settings', 'seen_at'))`).Scan(&migrated)
	if err != nil || !migrated {
		return err
	}
	found, unreadable, err := secretFindings(ctx, c, pool)
	if err != nil {
		return err
	}
	unprotected, err := connectionFindings(ctx, pool)
	if err != nil {
		return err
	}
	partitions, err := partitionFindings(ctx, c, pool)
	if err != nil {
		return err
	}
	shared, err := settingFindings(ctx, c, pool)
	if err != nil {
		return err
	}
	locks, err := lockFinding(ctx, pool)
	if err != nil {
		return err
	}
	collation, err := collationFinding(ctx, pool)
	if err != nil {
		return err
	}
	clock, err := clockFinding(ctx, pool)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, f := range append(slices.Concat(found, unprotected, partitions, shared), locks, collation, clock) {
		fmt.Fprintf(w, "%s\t%s\t%s\n", f.state, f.name, remote.Printable(f.text))
	}
	if err := w.Flush(); err != nil || unreadable == 0 {
		return err
	}
	return fmt.Errorf("%d secrets are unreadable with the keys in LEMMA_SECRET_KEY", unreadable)
}

// clockFinding compares this machine's clock with the database's.
func clockFinding(ctx context.Context, pool *pgxpool.Pool) (finding, error) {
	ahead, err := server.Skew(ctx, pool)
	if err != nil || ahead.Abs() <= server.MaxSkew {
		return finding{"ok", "clock", "that of this machine is that of the database"}, err
	}
	word := "ahead of"
	if ahead < 0 {
		word = "behind"
	}
	return finding{"warn", "clock", fmt.Sprintf("that of this machine is %s %s that of the database: synchronize both",
		ahead.Abs().Round(time.Second), word)}, nil
}

// secretFindings decrypts every secret.
func secretFindings(ctx context.Context, c Config, pool *pgxpool.Pool) (list []finding, unreadable int, err error) {
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
		f := finding{"ok", "secrets of " + s.Table, fmt.Sprintf("all %d are encrypted with the first key", r.Rows)}
		switch {
		case len(r.Unreadable) > 0:
			f.state, f.text = "RED", fmt.Sprintf("%d of %d are unreadable with every key (%s)", len(r.Unreadable), r.Rows, named(s, r.Unreadable))
		case r.Old > 0:
			f.state, f.text = "warn", fmt.Sprintf("all %d are readable, %d with another key than the first: run lemma secrets reseal", r.Rows, r.Old)
		}
		list, unreadable = append(list, f), unreadable+len(r.Unreadable)
	}
	return list, unreadable, nil
}

// connectionFindings lists data sources and providers whose connections could be
// read or intercepted on the network.
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

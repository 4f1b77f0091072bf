package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/server"
	"lemma/settings"
)

type settingsCommand struct {
	List   settingsListCommand   `cmd:"" help:"List the values that processes have, or had, of the settings that concern all of them."`
	Remove settingsRemoveCommand `cmd:"" help:"Forget a value that no running process has."`
}

type settingsListCommand struct{}

func (settingsListCommand) run(ctx context.Context, c Config, out io.Writer) error {
	return withMigrated(ctx, c, func(pool *pgxpool.Pool) error {
		all, err := settings.List(ctx, pool)
		if err != nil {
			return err
		}
		t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "SETTING\tVALUE\tSTARTED\tSEEN\tIN USE")
		for _, s := range all {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%t\n", s.Name, s.Value, orNever(&s.StartedAt), orNever(&s.SeenAt), s.InUse)
		}
		return t.Flush()
	})
}

type settingsRemoveCommand struct {
	Setting string `arg:"" help:"The setting, such as LEMMA_PUBLIC_URL."`
	Value   string `arg:"" help:"The value, as the list shows it."`
}

func (r settingsRemoveCommand) run(ctx context.Context, c Config, _ io.Writer) error {
	return withMigrated(ctx, c, func(pool *pgxpool.Pool) error { return settings.Remove(ctx, pool, r.Setting, r.Value) })
}

func withMigrated(ctx context.Context, c Config, f func(*pgxpool.Pool) error) error {
	pool, err := server.OpenMigrated(ctx, c.server())
	if err != nil {
		return err
	}
	defer pool.Close()
	return f(pool)
}

// publicURLFindings compares the public URLs of the processes, and the setting of this one.
func publicURLFindings(ctx context.Context, c Config, pool *pgxpool.Pool, all []settings.Stored) (list []finding, err error) {
	all = settings.Of(all, settings.PublicURL)
	if len(all) == 0 {
		if c.PublicURL != "" {
			return []finding{{"ok", "public URL", c.PublicURL + ", once a process has started"}}, nil
		}
		var awaited bool
		if err := pool.QueryRow(ctx, `select exists (select from providers where receives)`).Scan(&awaited); err != nil {
			return nil, fmt.Errorf("find providers that receive events: %w", err)
		}
		f := finding{"ok", "public URL", "none: marketing emails are refused, nothing is tracked, and no events are received"}
		if awaited {
			f = finding{"warn", "public URL", "none, so that no events come although providers are configured to receive them: set LEMMA_PUBLIC_URL"}
		}
		return []finding{f}, nil
	}
	list = []finding{{"ok", "public URL", all[0].Value}}
	for _, s := range all[1:] {
		if s.InUse {
			list = append(list, finding{"warn", "public URL", "a process has another LEMMA_PUBLIC_URL, which is not used: " + s.Value})
		}
	}
	if c.PublicURL != "" && c.PublicURL != all[0].Value {
		list = append(list, finding{"warn", "public URL", "LEMMA_PUBLIC_URL of this command is another: " + c.PublicURL})
	}
	return list, nil
}

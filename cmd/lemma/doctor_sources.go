package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/audience"
)

// Bounds of the tests of data sources.
const (
	maxDoctorSources = 100
	doctorSourceTime = 10 * time.Second
)

// testSources does nothing without the key that decrypts the DSNs.
func testSources(ctx context.Context, c Config, pool *pgxpool.Pool, out io.Writer) error {
	if c.SecretKey == "" {
		return nil
	}
	box, err := c.box()
	if err != nil {
		return err
	}
	limits := c.server().Sources
	limits.QueryTimeout = doctorSourceTime
	sources := audience.New(pool, box, limits)
	defer sources.Close()
	return printSources(ctx, sources, pool, out)
}

// printSources tests the data sources and prints unnecessary privileges of their
// roles, with the statements that revoke them. A source that fails its test is only
// a warning: campaigns on it fail by themselves.
func printSources(ctx context.Context, sources *audience.Audiences, pool *pgxpool.Pool, out io.Writer) error {
	rows, _ := pool.Query(ctx, `select workspace_id, id, name from data_sources order by workspace_id, id limit $1`, maxDoctorSources)
	type source struct {
		WorkspaceID, ID uuid.UUID
		Name            string
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[source])
	if err != nil {
		return fmt.Errorf("find data sources: %w", err)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, s := range list {
		report, err := sources.TestSource(ctx, s.WorkspaceID, s.ID)
		state, lines := "ok", report.Source.RoleWarnings
		switch {
		case err != nil:
			state, lines = "warn", append([]string{lemma.Public(err)}, lines...)
		case len(lines) > 0:
			state = "warn"
		}
		fmt.Fprintf(w, "%s\tdata source %s\t%s\n", state, lemma.FormatID(lemma.PrefixDataSource, s.ID), s.Name)
		for _, line := range lines {
			fmt.Fprintf(w, "\t\t%s\n", line)
		}
		if len(report.Source.RoleRevokes) > 0 {
			fmt.Fprintf(w, "\t\trun in that database: %s;\n", strings.Join(report.Source.RoleRevokes, "; "))
		}
	}
	return w.Flush()
}

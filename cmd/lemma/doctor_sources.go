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

// Bounds of what doctor asks of data sources.
const (
	maxDoctorSources = 100
	doctorSourceTime = 10 * time.Second
)

// testSources needs the key that the DSNs are sealed with.
func testSources(ctx context.Context, c Config, pool *pgxpool.Pool, out io.Writer) error {
	if c.SecretKey == "" {
		return nil
	}
	box, err := c.box()
	if err != nil {
		return err
	}
	sources := audience.New(pool, box, c.sources(doctorSourceTime))
	defer sources.Close()
	return printSources(ctx, sources, pool, out)
}

// printSources tests the data sources anew and prints what their roles may do
// and need not, with the statements that take it away. A source that fails its
// test is no reason to stop sending: audiences on it fail by themselves.
func printSources(ctx context.Context, sources *audience.Audiences, pool *pgxpool.Pool, out io.Writer) error {
	rows, err := pool.Query(ctx, `select workspace_id, id, name from data_sources order by workspace_id, id limit $1`, maxDoctorSources)
	if err != nil {
		return fmt.Errorf("find data sources: %w", err)
	}
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
			fmt.Fprintf(w, "\t\tto be run there: %s;\n", strings.Join(report.Source.RoleRevokes, "; "))
		}
	}
	return w.Flush()
}

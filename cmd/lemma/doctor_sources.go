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
	"golang.org/x/sync/errgroup"

	"lemma"
	"lemma/audience"
	"lemma/cmd/lemma/remote"
)

// Bounds of the tests of data sources. Those of one workspace leave time for those of
// the others.
const (
	maxDoctorSources = 400
	maxSourcesOfOne  = 10
	sourcesAtATime   = 8
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
	list, all, err := sourcesToTest(ctx, pool)
	if err != nil {
		return fmt.Errorf("find data sources: %w", err)
	}
	var tests errgroup.Group
	tests.SetLimit(sourcesAtATime)
	for i := range list {
		tests.Go(func() error {
			list[i].test(ctx, sources)
			return ctx.Err()
		})
	}
	if err := tests.Wait(); err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, s := range list {
		s.print(w)
	}
	if left := all - len(list); left > 0 {
		fmt.Fprintf(w, "warn\tdata sources\t%d were not tested: at most %d of a workspace are, and %d in all\n", left,
			maxSourcesOfOne, maxDoctorSources)
	}
	return w.Flush()
}

type testedSource struct {
	WorkspaceID, ID uuid.UUID
	Name            string

	report audience.TestReport
	err    error
}

// sourcesToTest returns the first data sources of each workspace, and how many there are in all.
func sourcesToTest(ctx context.Context, pool *pgxpool.Pool) (list []testedSource, all int, err error) {
	if err := pool.QueryRow(ctx, `select count(*) from data_sources`).Scan(&all); err != nil {
		return nil, 0, err
	}
	rows, _ := pool.Query(ctx, `
		select workspace_id, id, name
		from (select workspace_id, id, name, row_number() over (partition by workspace_id order by id) as place from data_sources) as placed
		where place <= $1 order by place, workspace_id limit $2`, maxSourcesOfOne, maxDoctorSources)
	list, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (s testedSource, err error) {
		return s, row.Scan(&s.WorkspaceID, &s.ID, &s.Name)
	})
	return list, all, err
}

func (s *testedSource) test(ctx context.Context, sources *audience.Audiences) {
	s.report, s.err = sources.TestSource(ctx, s.WorkspaceID, s.ID)
}

func (s testedSource) print(out io.Writer) {
	state, lines := "ok", s.report.Source.RoleWarnings
	switch {
	case s.err != nil:
		state, lines = "warn", append([]string{lemma.Public(s.err)}, lines...)
	case len(lines) > 0:
		state = "warn"
	}
	fmt.Fprintf(out, "%s\tdata source %s\t%s\n", state, lemma.FormatID(lemma.PrefixDataSource, s.ID), remote.Printable(s.Name))
	for _, line := range lines {
		fmt.Fprintf(out, "\t\t%s\n", remote.Printable(line))
	}
	if len(s.report.Source.RoleRevokes) > 0 {
		fmt.Fprintf(out, "\t\trun in that database: %s;\n", strings.Join(s.report.Source.RoleRevokes, "; "))
	}
}

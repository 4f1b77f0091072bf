package pgtest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Statements collects the SQL that the program sends through a pool, so that a
// test can check the plans of all statements.
type Statements struct {
	Settings map[string]string // of the connection that explains, as the program sets them

	mu  sync.Mutex
	sql map[string]string // text -> the function that sent it first
}

// Trace opens another pool on the database of pool and collects the statements
// that are sent through it, except those of tests.
func (s *Statements) Trace(t testing.TB, pool *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	cfg := pool.Config()
	cfg.ConnConfig.Tracer = s
	traced, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closePool(t, traced) })
	return traced
}

// TraceQueryStart is pgx.QueryTracer.
func (s *Statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	s.add(q.SQL)
	return ctx
}

// TraceQueryEnd is pgx.QueryTracer.
func (s *Statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart is pgx.BatchTracer.
func (s *Statements) TraceBatchStart(ctx context.Context, _ *pgx.Conn, b pgx.TraceBatchStartData) context.Context {
	for _, q := range b.Batch.QueuedQueries {
		s.add(q.SQL)
	}
	return ctx
}

// TraceBatchQuery is pgx.BatchTracer.
func (s *Statements) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd is pgx.BatchTracer.
func (s *Statements) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

var planned = regexp.MustCompile(`(?is)^\s*(--[^\n]*\n\s*)*(select|insert|update|delete|with)\b`)

// declared begins a statement that opens a cursor; the plan is that of the rest.
var declared = regexp.MustCompile(`(?i)^\s*declare \w+ (no scroll )?cursor for\b`)

func (s *Statements) add(sql string) {
	sql = declared.ReplaceAllString(sql, "")
	if !planned.MatchString(sql) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.sql[sql]; known {
		return
	}
	by, test := caller()
	if test {
		return
	}
	if s.sql == nil {
		s.sql = map[string]string{}
	}
	s.sql[sql] = by
}

// caller is the function of this module that sends a statement, and whether it
// belongs to a test.
func caller() (name string, test bool) {
	stack := make([]uintptr, 64)
	frames := runtime.CallersFrames(stack[:runtime.Callers(4, stack)])
	for {
		f, more := frames.Next()
		if strings.HasPrefix(f.Function, "lemma") {
			return f.Function, strings.HasSuffix(f.File, "_test.go") || strings.HasPrefix(f.Function, "lemma/pgtest.")
		}
		if !more {
			return "", false
		}
	}
}

// Scan is the scan of one table in a plan.
type Scan struct {
	SQL, Caller string
	Table       string   // of a partition, the partitioned table
	Type        string   // Seq Scan, Index Scan, ...
	Index, Cond string   // empty for a Seq Scan
	Columns     []string // of the index, in order
	Plan        string   // the whole plan as text
}

// By reports whether the scan reads only the rows of one value of a column: its
// index condition has the column and all columns before it in the index.
func (s Scan) By(column string) bool {
	for _, c := range s.Columns {
		if !regexp.MustCompile(`\b` + c + `\b`).MatchString(s.Cond) {
			return false
		}
		if c == column {
			return true
		}
	}
	return false
}

// node is one node of explain's JSON.
type node struct {
	Type  string `json:"Node Type"`
	Table string `json:"Relation Name"`
	Index string `json:"Index Name"`
	Cond  string `json:"Index Cond"`
	Plans []node
}

// Scans explains the generic plan of each collected statement and returns every
// scan in it. A statement for another schema fails the test.
func (s *Statements) Scans(t testing.TB, pool *pgxpool.Pool) (all []Scan) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	cfg := pool.Config().ConnConfig.Copy()
	maps.Copy(cfg.RuntimeParams, s.Settings)
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	// Without pruning a plan shows the scans of all partitions.
	if _, err := conn.Exec(t.Context(), `set plan_cache_mode = force_generic_plan; set enable_partition_pruning = off`); err != nil {
		t.Fatal(err)
	}
	columns := indexColumns(t, conn)
	for _, sql := range slices.Sorted(maps.Keys(s.sql)) {
		root, text, err := explain(t.Context(), conn, sql)
		if err != nil {
			t.Fatalf("explain what %s sends: %v\n%s", s.sql[sql], err, sql)
		}
		root.visit(func(n node, index string) {
			all = append(all, Scan{
				SQL: sql, Caller: s.sql[sql], Table: partitionOf.ReplaceAllString(n.Table, ""), Type: n.Type,
				Index: index, Cond: n.Cond, Columns: columns[index], Plan: text,
			})
		})
	}
	return all
}

// indexColumns are the columns of every index, in order.
func indexColumns(t testing.TB, conn *pgx.Conn) map[string][]string {
	t.Helper()
	rows, err := conn.Query(t.Context(), `
		select c.relname::text, array_agg(a.attname::text order by a.attnum) from pg_index i
		join pg_class c on c.oid = i.indexrelid join pg_attribute a on a.attrelid = c.oid group by c.oid, c.relname`)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	var index string
	var columns []string
	if _, err := pgx.ForEachRow(rows, []any{&index, &columns}, func() error { all[index] = columns; return nil }); err != nil {
		t.Fatal(err)
	}
	return all
}

var partitionOf = regexp.MustCompile(`_(default|unmatched|\d{4}_\d{2})$`)

// explain returns a plan as a tree and as text. It needs no values, since the
// plan is generic.
func explain(ctx context.Context, conn *pgx.Conn, sql string) (root node, text string, err error) {
	const name = "explained"
	d, err := conn.Prepare(ctx, name, sql)
	if err != nil {
		return node{}, "", err
	}
	defer func() { _ = conn.Deallocate(ctx, name) }()
	execute := "execute " + name
	if n := len(d.ParamOIDs); n > 0 {
		execute += "(" + strings.TrimSuffix(strings.Repeat("null,", n), ",") + ")"
	}
	var raw []byte
	if err := conn.QueryRow(ctx, "explain (format json) "+execute, pgx.QueryExecModeSimpleProtocol).Scan(&raw); err != nil {
		return node{}, "", err
	}
	var explained []struct{ Plan node }
	if err := json.Unmarshal(raw, &explained); err != nil || len(explained) != 1 {
		return node{}, "", fmt.Errorf("read plan: %w", err)
	}
	rows, _ := conn.Query(ctx, "explain "+execute, pgx.QueryExecModeSimpleProtocol)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return explained[0].Plan, strings.Join(lines, "\n"), err
}

// visit calls f for the scans below a node. A bitmap scan has its condition in
// the index node, and its table in the node above.
func (n node) visit(f func(n node, index string)) {
	switch {
	case n.Type == "Bitmap Heap Scan":
		n.visitBitmaps(n.Table, f)
		return
	case strings.HasSuffix(n.Type, "Scan") && n.Table != "":
		f(n, n.Index)
	}
	for _, below := range n.Plans {
		below.visit(f)
	}
}

func (n node) visitBitmaps(table string, f func(n node, index string)) {
	for _, below := range n.Plans {
		if below.Type == "Bitmap Index Scan" {
			below.Table = table
			f(below, below.Index)
		}
		below.visitBitmaps(table, f)
	}
}

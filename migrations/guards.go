package migrations

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Guard is one thing that a promise rests on, and whether it stands.
type Guard struct {
	Name    string // constraint, index, or setting
	Table   string // empty for what is not about a table
	Promise string // the property that breaks without it, as the specs name it, or a few words
	OK      bool
	Why     string // what is wrong; empty when nothing is
}

// GuardOptions loosen the check. The zero value is for production.
type GuardOptions struct {
	// AllowNoFsync is for databases that live as long as one test.
	AllowNoFsync bool
}

// Guards checks everything that a promise rests on in the database: the
// constraints and unique indexes of the expected list on their tables and on
// every partition, that the tables survive a crash, the settings that make a
// commit last, and that all migrations ran. Who sends without a green list
// promises nothing. The error is for a database that cannot be asked.
func Guards(ctx context.Context, pool *pgxpool.Pool, o GuardOptions) ([]Guard, error) {
	guards, err := catalogGuards(ctx, pool, o)
	if err != nil {
		return nil, fmt.Errorf("check guards: %w", err)
	}
	river, err := riverGuard(ctx, pool)
	if err != nil {
		return nil, fmt.Errorf("check guards: %w", err)
	}
	return append(guards, river), nil
}

// catalogGuards are all but River's, asked in one session.
func catalogGuards(ctx context.Context, q querier, o GuardOptions) ([]Guard, error) {
	found, err := readRules(ctx, q)
	if err != nil {
		return nil, err
	}
	var guards []Guard
	for _, w := range expected {
		why := w.fault(found)
		guards = append(guards, Guard{Name: w.name, Table: w.table, Promise: w.promise, OK: why == "", Why: why})
	}
	for _, check := range []func(context.Context, querier, GuardOptions) ([]Guard, error){durableGuard, settingGuards, versionGuard} {
		more, err := check(ctx, q, o)
		if err != nil {
			return nil, err
		}
		guards = append(guards, more...)
	}
	return guards, nil
}

// rule is a constraint or unique index as the catalog describes it.
type rule struct {
	Table      string // the one that the expected list names
	Relation   string // that table, or one of its partitions
	Name       string // its name; on a partition, the name of the table's own that it belongs to
	Definition string
	Valid      bool
}

// readRules reads the rules of all tables in the expected list. A relation
// without any rule yields one row without a name, so that a partition with
// nothing on it is seen.
func readRules(ctx context.Context, q querier) ([]rule, error) {
	rows, err := q.Query(ctx, `
with tables as (
    select distinct name, to_regclass(name)::oid as root from unnest($1::text[]) name
), relations as (
    select name, root as id from tables where root is not null
    union all
    select name, inhrelid from tables join pg_inherits on inhparent = root
), rules as (
    select c.conrelid as id, coalesce(p.conname, c.conname)::text as name, pg_get_constraintdef(c.oid) as definition, c.conkey::int2[] as columns,
           c.convalidated and coalesce(i.indisvalid and i.indisready and i.indisunique, true) as valid
    from pg_constraint c
    left join pg_constraint p on p.oid = c.conparentid
    left join pg_index i on i.indexrelid = c.conindid and c.contype in ('p', 'u')
    where c.contype in ('p', 'u', 'c')
    union all
    select i.indrelid, coalesce(parent.relname, x.relname)::text,
           'UNIQUE ' || substr(pg_get_indexdef(i.indexrelid), position('USING ' in pg_get_indexdef(i.indexrelid))), i.indkey::int2[], i.indisvalid and i.indisready
    from pg_index i
    join pg_class x on x.oid = i.indexrelid
    left join pg_inherits h on h.inhrelid = i.indexrelid
    left join pg_class parent on parent.oid = h.inhparent
    where i.indisunique and not exists (select from pg_constraint c where c.conindid = i.indexrelid and c.contype in ('p', 'u', 'x'))
)
select r.name as table, r.id::regclass::text as relation, coalesce(u.name, '') as name,
       coalesce(u.definition, '') || coalesce(' NULLABLE ' || nullable.columns, '') as definition, coalesce(u.valid, false) as valid
from relations r
left join rules u on u.id = r.id
left join lateral (
    select string_agg(a.attname, ', ' order by a.attname) as columns
    from pg_attribute a where a.attrelid = u.id and a.attnum = any(u.columns) and not a.attnotnull
) nullable on true`, expectedTables())
	if err != nil {
		return nil, fmt.Errorf("read constraints: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByName[rule])
	if err != nil {
		return nil, fmt.Errorf("read constraints: %w", err)
	}
	return found, nil
}

// fault compares one expectation with what is there, on the table and on each
// partition; empty when all is well.
func (w want) fault(found []rule) string {
	var faults []string
	relations := map[string]string{} // relation -> what is wrong with it
	for _, r := range found {
		if r.Table != w.table {
			continue
		}
		if _, seen := relations[r.Relation]; !seen {
			relations[r.Relation] = r.Relation + " lacks it"
		}
		if r.Name == w.name {
			relations[r.Relation] = w.compare(r)
		}
	}
	if len(relations) == 0 {
		return "there is no table " + w.table
	}
	for _, why := range relations {
		if why != "" {
			faults = append(faults, why)
		}
	}
	return strings.Join(faults, "; ")
}

func (w want) compare(r rule) string {
	switch {
	case r.Definition != w.definition:
		return fmt.Sprintf("on %s it is %s instead of %s", r.Relation, r.Definition, w.definition)
	case !r.Valid:
		return "it is not valid on " + r.Relation
	}
	return ""
}

// durableGuard: an unlogged table is empty after a crash.
func durableGuard(ctx context.Context, q querier, _ GuardOptions) ([]Guard, error) {
	names, err := scalar[string](ctx, q, `
		select coalesce(string_agg(c.oid::regclass::text, ', ' order by c.oid::regclass::text), '') from pg_class c
		where c.relpersistence <> 'p' and (c.oid in (select to_regclass(name) from unnest($1::text[]) name)
			or exists (select from pg_inherits h where h.inhrelid = c.oid and h.inhparent in (select to_regclass(name) from unnest($1::text[]) name)))`, expectedTables())
	g := Guard{Name: "logged tables", Promise: "nothing is lost silently", OK: names == ""}
	if !g.OK {
		g.Why = "a crash would empty " + names
	}
	return []Guard{g}, err
}

// Isolation is the level of every transaction: whoever has waited for a lock
// reads what was committed meanwhile.
const Isolation = "read committed"

// settingGuards read the settings as a session of ours has them: a role or a
// database can have its own.
func settingGuards(ctx context.Context, q querier, o GuardOptions) ([]Guard, error) {
	var guards []Guard
	for _, name := range []string{"fsync", "full_page_writes", "synchronous_commit"} {
		value, err := scalar[string](ctx, q, "select current_setting($1)", name)
		if err != nil {
			return nil, err
		}
		g := Guard{Name: name, Promise: "once a transaction has committed, it has happened"}
		// Besides on and off, synchronous_commit knows words that say where
		// else a commit must have arrived; all of them include the own disk.
		g.OK = value != "off" || (name == "fsync" && o.AllowNoFsync)
		if !g.OK {
			g.Why = "it is off: what was sent may be forgotten in a crash, and sent again"
		}
		guards = append(guards, g)
	}
	level, err := scalar[string](ctx, q, "select current_setting('default_transaction_isolation')")
	if err != nil {
		return nil, err
	}
	g := Guard{Name: "default_transaction_isolation", Promise: "an event and who waits for it see each other", OK: level == Isolation}
	if !g.OK {
		g.Why = fmt.Sprintf("it is %s: whoever has waited for a lock would not see what was committed meanwhile; take it out of DATABASE_URL, or let it be %s", level, Isolation)
	}
	return append(guards, g), nil
}

func versionGuard(ctx context.Context, q querier, _ GuardOptions) ([]Guard, error) {
	steps, err := Status(ctx, q)
	if err != nil {
		return nil, err
	}
	g := Guard{Name: "migrations", Promise: "the schema is the one that this version was written for", OK: true}
	for _, s := range steps {
		if s.AppliedAt == nil {
			g.OK, g.Why = false, s.Name+" was not applied: run `lemma migrate up`"
			break
		}
	}
	return []Guard{g}, nil
}

func riverGuard(ctx context.Context, pool *pgxpool.Pool) (Guard, error) {
	g := Guard{Name: "river migrations", Promise: "bells ring"}
	m, err := riverMigrator(pool)
	if err != nil {
		return g, err
	}
	v, err := m.Validate(ctx, nil)
	if err != nil {
		return g, fmt.Errorf("validate river's migrations: %w", err)
	}
	if g.OK = v.OK; !g.OK {
		g.Why = strings.Join(v.Messages, "; ") + ": run `lemma migrate up`"
	}
	return g, nil
}

// Behind is the error of a schema that lacks migrations of this version, ours
// or River's; nil when it has them all.
func Behind(ctx context.Context, pool *pgxpool.Pool) error {
	ours, err := versionGuard(ctx, pool, GuardOptions{})
	if err != nil || !ours[0].OK {
		return errors.Join(err, Red(ours))
	}
	rivers, err := riverGuard(ctx, pool)
	return errors.Join(err, Red([]Guard{rivers}))
}

// Red is the error of all guards that do not stand; nil when all do.
func Red(guards []Guard) error {
	var red []error
	for _, g := range guards {
		if !g.OK {
			red = append(red, fmt.Errorf("guard %s: %s", strings.TrimPrefix(g.Table+"."+g.Name, "."), g.Why))
		}
	}
	return errors.Join(red...)
}

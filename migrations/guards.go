package migrations

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Guard is a constraint, index or setting that a promise depends on, and whether
// it holds.
type Guard struct {
	Name    string // constraint, index, or setting
	Table   string // empty for a setting
	Promise string // the property of a spec that it guards, or a description
	OK      bool
	Why     string // what is wrong; empty if OK
}

// GuardOptions relax the check. The zero value is for production.
type GuardOptions struct {
	// AllowNoFsync accepts fsync=off, for the databases of tests.
	AllowNoFsync bool
}

// Guards checks what the promises need from the database: the expected
// constraints and unique indexes on their tables and on every partition, logged
// tables, the settings that make a commit durable, and all migrations. No
// promise holds if a guard is not OK. The error is that of a failed query.
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

// catalogGuards checks all guards but River's, in one session.
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

// rule is a constraint or unique index in the catalog.
type rule struct {
	Table      string // as in the expected list
	Relation   string // that table, or one of its partitions
	Name       string // on a partition, the name of the table's rule that it belongs to
	Definition string
	Valid      bool
}

// readRules reads the rules of all tables in the expected list. A relation
// without any rule yields one row without a name, so that fault finds it.
func readRules(ctx context.Context, q querier) ([]rule, error) {
	rows, _ := q.Query(ctx, `
with tables as (
    select distinct name, to_regclass(name)::oid as root from unnest($1::text[]) name
), relations as (
    select name, root as id from tables where root is not null
    union all
    select name, inhrelid from tables join pg_inherits on inhparent = root
), rules as (
    select c.conrelid as id, coalesce(p.conname, c.conname)::text as name,
           pg_get_constraintdef(c.oid) as definition, c.conkey::int2[] as columns,
           c.convalidated and coalesce(i.indisvalid and i.indisready and i.indisunique, true) as valid
    from pg_constraint c
    left join pg_constraint p on p.oid = c.conparentid
    left join pg_index i on i.indexrelid = c.conindid and c.contype in ('p', 'u')
    where c.contype in ('p', 'u', 'c', 'f')
    union all
    select t.tgrelid, t.tgname::text, 'TRIGGER ' || t.tgfoid::regproc::text, '{}'::int2[], t.tgenabled = 'O'
    from pg_trigger t where not t.tgisinternal
    union all
    select i.indrelid, coalesce(parent.relname, x.relname)::text,
           'UNIQUE ' || substr(pg_get_indexdef(i.indexrelid), position('USING ' in pg_get_indexdef(i.indexrelid))),
           i.indkey::int2[], i.indisvalid and i.indisready
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
	found, err := pgx.CollectRows(rows, pgx.RowToStructByName[rule])
	if err != nil {
		return nil, fmt.Errorf("read constraints: %w", err)
	}
	return found, nil
}

// fault compares an expectation with the rules of its table and of each
// partition. It is empty if they agree.
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

// durableGuard checks that the tables are logged: an unlogged table is empty
// after a crash.
func durableGuard(ctx context.Context, q querier, _ GuardOptions) ([]Guard, error) {
	names, err := scalar[string](ctx, q, `
		select coalesce(string_agg(c.oid::regclass::text, ', ' order by c.oid::regclass::text), '') from pg_class c
		where c.relpersistence <> 'p' and (c.oid in (select to_regclass(name) from unnest($1::text[]) name)
			or exists (select from pg_inherits h where h.inhrelid = c.oid
				and h.inhparent in (select to_regclass(name) from unnest($1::text[]) name)))`, expectedTables())
	g := Guard{Name: "logged tables", Promise: "a crash empties no table", OK: names == ""}
	if !g.OK {
		g.Why = "a crash would empty " + names
	}
	return []Guard{g}, err
}

// Isolation is the isolation level of every transaction: after waiting for a
// lock, a statement reads what was committed in the meantime.
const Isolation = "read committed"

// settingGuards checks the settings of a session of Lemma, since a role or a
// database can have its own.
func settingGuards(ctx context.Context, q querier, o GuardOptions) ([]Guard, error) {
	var guards []Guard
	for _, name := range []string{"fsync", "full_page_writes", "synchronous_commit"} {
		value, err := scalar[string](ctx, q, "select current_setting($1)", name)
		if err != nil {
			return nil, err
		}
		g := Guard{Name: name, Promise: "a committed transaction survives a crash"}
		// The other values of synchronous_commit name standbys that must have
		// the commit as well; all of them include the local disk.
		g.OK = value != "off" || (name == "fsync" && o.AllowNoFsync)
		if !g.OK {
			g.Why = "it is off: a crash may lose the record of sent messages, which are then sent again"
		}
		guards = append(guards, g)
	}
	level, err := scalar[string](ctx, q, "select current_setting('default_transaction_isolation')")
	if err != nil {
		return nil, err
	}
	g := Guard{Name: "default_transaction_isolation", OK: level == Isolation,
		Promise: "an event and a wait that begins at the same time see each other"}
	if !g.OK {
		g.Why = fmt.Sprintf("it is %s: a statement that waited for a lock would not see what was committed in the meantime; "+
			"remove it from DATABASE_URL, or set it to %s", level, Isolation)
	}
	encoded, err := encodingGuard(ctx, q)
	return append(guards, g, encoded), err
}

func encodingGuard(ctx context.Context, q querier) (Guard, error) {
	encoding, err := scalar[string](ctx, q, "select current_setting('server_encoding')")
	g := Guard{Name: "server_encoding", OK: encoding == "UTF8", Promise: "the texts of every recipient can be stored"}
	if !g.OK {
		g.Why = fmt.Sprintf("the encoding of the database is %s, which lacks characters or does not check them: "+
			"create a database with `encoding 'UTF8'`, and restore a dump of this one there", encoding)
	}
	return g, err
}

func versionGuard(ctx context.Context, q querier, _ GuardOptions) ([]Guard, error) {
	steps, err := Status(ctx, q)
	if err != nil {
		return nil, err
	}
	g := Guard{Name: "migrations", Promise: "the schema fits this version", OK: true}
	for _, s := range steps {
		if s.AppliedAt == nil {
			g.OK, g.Why = false, s.Name+" was not applied: run `lemma migrate up`"
			break
		}
	}
	return []Guard{g}, nil
}

func riverGuard(ctx context.Context, pool *pgxpool.Pool) (Guard, error) {
	g := Guard{Name: "river migrations", Promise: "jobs are enqueued and executed"}
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
		return g, nil
	}
	if g.OK, err = hasRiverTrigger(ctx, pool); err == nil && !g.OK {
		g.Why = "the trigger river_job_due is missing: run `lemma migrate up`"
	}
	return g, err
}

// Behind returns an error if the schema lacks a migration of this version,
// Lemma's or River's.
func Behind(ctx context.Context, pool *pgxpool.Pool) error {
	ours, err := versionGuard(ctx, pool, GuardOptions{})
	if err != nil || !ours[0].OK {
		return errors.Join(err, Red(ours))
	}
	rivers, err := riverGuard(ctx, pool)
	return errors.Join(err, Red([]Guard{rivers}))
}

// Red returns an error with all guards that are not OK, or nil.
func Red(guards []Guard) error {
	var red []error
	for _, g := range guards {
		if !g.OK {
			red = append(red, fmt.Errorf("%s: %s", strings.TrimPrefix(g.Table+"."+g.Name, "."), g.Why))
		}
	}
	return errors.Join(red...)
}

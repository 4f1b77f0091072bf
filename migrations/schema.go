package migrations

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

//go:generate go test -count=1 -run TestSchemaDump . -update

// Schema describes the schema from the catalog, in a fixed order: tables with
// columns, constraints and indexes, views by their columns, triggers, and comments. It
// leaves out the partitions of months and the tables of goose and River. It is
// written to schema.sql for review, not to be run.
func Schema(ctx context.Context, q querier) (string, error) {
	var out strings.Builder
	out.WriteString("-- The schema after all migrations. `make schema` writes this file; review it, do not run it.\n")
	for _, part := range []string{schemaTables, schemaViews, schemaIndexes, schemaTriggers, schemaComments} {
		rows, _ := q.Query(ctx, part)
		statements, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return "", fmt.Errorf("describe schema: %w", err)
		}
		out.WriteString("\n" + strings.TrimSpace(strings.Join(statements, "\n")) + "\n")
	}
	return out.String(), nil
}

// ours selects the relations that are described; c is their row in pg_class.
const ours = ` c.relnamespace = current_schema()::regnamespace and c.relname !~ '^(river|goose)_'
    and (not c.relispartition or pg_get_expr(c.relpartbound, c.oid) = 'DEFAULT') `

// schemaTables writes each table as one statement. A partition inherits its
// columns and constraints.
const schemaTables = `
select case when c.relispartition
       then format('create table %s partition of %s %s', c.relname, parent.relname, lower(pg_get_expr(c.relpartbound, c.oid)))
       else format(E'create table %s (\n%s\n)', c.relname, (
           select string_agg('    ' || line, E',\n' order by place, line_order, line collate "C") from (
               select 1 as place, a.attnum::int as line_order,
                      a.attname || ' ' || format_type(a.atttypid, a.atttypmod) || case when a.attnotnull then ' not null' else '' end
                      || coalesce(case a.attgenerated
                         when 's' then format(' generated always as (%s) stored', pg_get_expr(d.adbin, d.adrelid))
                         else ' default ' || pg_get_expr(d.adbin, d.adrelid) end, '') as line
               from pg_attribute a left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
               where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
               union all
               select 2, position(k.contype::text in 'pucf'), format('constraint %s %s', k.conname, pg_get_constraintdef(k.oid))
               from pg_constraint k where k.conrelid = c.oid and k.contype in ('p', 'u', 'c', 'f')
           ) lines)) end
       || coalesce(' partition by ' || pg_get_partkeydef(c.oid), '')
       || coalesce(' with (' || array_to_string(c.reloptions, ', ') || ')', '') || E';\n'
from pg_class c
left join pg_inherits h on h.inhrelid = c.oid
left join pg_class parent on parent.oid = h.inhparent
where c.relkind in ('r', 'p') and` + ours + `order by c.relname collate "C"`

// schemaTriggers writes each trigger with its function.
const schemaTriggers = `
select pg_get_triggerdef(t.oid) || E';\n' || pg_get_functiondef(t.tgfoid)
from pg_trigger t join pg_class c on c.oid = t.tgrelid
where not t.tgisinternal and` + ours + `order by c.relname collate "C", t.tgname`

// schemaViews writes only the columns: versions of Postgres print the query of a
// view differently.
const schemaViews = `
select format(E'-- view %s (\n%s\n-- )\n', c.relname,
    string_agg('--     ' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod), E',\n' order by a.attnum))
from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0
where c.relkind = 'v' and` + ours + `group by c.relname order by c.relname collate "C"`

// schemaIndexes writes the indexes that belong to no constraint.
const schemaIndexes = `
select replace(pg_get_indexdef(x.oid), ' ' || x.relnamespace::regnamespace || '.', ' ') || ';'
from pg_index i join pg_class c on c.oid = i.indrelid join pg_class x on x.oid = i.indexrelid
where not x.relispartition and not exists (select from pg_constraint k where k.conindid = x.oid and k.conrelid = c.oid)
    and` + ours + `order by x.relname collate "C"`

const schemaComments = `
select text from (
    select format('comment on constraint %s on %s is %L;', k.conname, c.relname, obj_description(k.oid, 'pg_constraint')) as text
    from pg_constraint k join pg_class c on c.oid = k.conrelid
    where obj_description(k.oid, 'pg_constraint') is not null and` + ours + `
    union all
    select format('comment on %s %s is %L;',
        case c.relkind when 'i' then 'index' when 'I' then 'index' when 'v' then 'view' else 'table' end,
        c.relname, obj_description(c.oid, 'pg_class'))
    from pg_class c where obj_description(c.oid, 'pg_class') is not null and` + ours + `
    union all
    select format('comment on trigger %s on %s is %L;', t.tgname, c.relname, obj_description(t.oid, 'pg_trigger'))
    from pg_trigger t join pg_class c on c.oid = t.tgrelid where obj_description(t.oid, 'pg_trigger') is not null and` + ours + `
    union all
    select format('comment on column %s.%s is %L;', c.relname, a.attname, col_description(c.oid, a.attnum))
    from pg_class c join pg_attribute a on a.attrelid = c.oid where col_description(c.oid, a.attnum) is not null and` + ours + `
) comments order by text collate "C"`

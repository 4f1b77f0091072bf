package audience

import (
	"context"
	"fmt"
	"maps"
	"slices"
)

// probeRoles asks for every role that the login is or can become.
const probeRoles = `
select pg_catalog.current_setting('server_version'),
       coalesce((select ssl from pg_catalog.pg_stat_ssl where pid = pg_catalog.pg_backend_pid()), false)::text,
       (pg_catalog.inet_server_addr() is null)::text,
       r.rolname,
       case when r.rolsuper then 'is a superuser'
            when r.rolcreaterole then 'may create roles'
            when r.rolcreatedb then 'may create databases'
            when r.rolreplication then 'may replicate'
            when r.rolbypassrls then 'passes row security'
            when r.rolname in ('pg_read_server_files', 'pg_write_server_files', 'pg_execute_server_program', 'pg_signal_backend',
                               'pg_write_all_data', 'pg_create_subscription', 'pg_maintain', 'pg_checkpoint', 'pg_signal_autovacuum_worker')
            then 'has the powers of ' || r.rolname
            else '' end
  from pg_catalog.pg_roles r
 where pg_catalog.pg_has_role(session_user, r.oid, 'member')
    or r.rolname = current_user`

// probeFunctions finds server-side functions that are nobody's by default and
// that somebody granted all the same.
const probeFunctions = `
select p.proname
  from pg_catalog.pg_proc p
 where p.pronamespace = 'pg_catalog'::pg_catalog.regnamespace
   and p.proname in ('pg_read_file', 'pg_read_binary_file', 'pg_ls_dir', 'pg_stat_file', 'lo_import', 'lo_export', 'pg_reload_conf',
                     'pg_rotate_logfile', 'pg_switch_wal', 'pg_promote')
   and pg_catalog.has_function_privilege(session_user, p.oid, 'execute')
 limit 1`

// probeWrites counts tables that the role could change outside of our transaction.
const probeWrites = `
select count(*)::text
  from pg_catalog.pg_class c
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
 where c.relkind in ('r', 'p', 'v', 'f')
   and n.nspname not in ('pg_catalog', 'information_schema')
   and pg_catalog.has_schema_privilege(session_user, n.oid, 'usage')
   and pg_catalog.has_table_privilege(session_user, c.oid, 'insert, update, delete, truncate')`

func (p *pgSession) probe(ctx context.Context) (version string, warnings []string, err error) {
	rows, err := p.query(ctx, probeRoles)
	if err != nil {
		return "", nil, err
	}
	if len(rows) == 0 {
		return "", nil, refused(nil, "the source does not say what its role may do")
	}
	for _, row := range rows {
		if power := string(row[4]); power != "" {
			return "", nil, tooPowerful(power)
		}
	}
	if warnings, err = p.probePrivileges(ctx); err != nil {
		return "", nil, err
	}
	if encrypted, local := string(rows[0][1]), string(rows[0][2]); encrypted == "false" && local == "false" {
		warnings = append(warnings, "the connection is not encrypted")
	}
	return "PostgreSQL " + spoken(string(rows[0][0])), warnings, nil
}

func (p *pgSession) probePrivileges(ctx context.Context) (warnings []string, err error) {
	functions, err := p.query(ctx, probeFunctions)
	if err != nil {
		return nil, err
	}
	if len(functions) > 0 {
		return nil, tooPowerful("may call " + spoken(string(functions[0][0])))
	}
	writes, err := p.query(ctx, probeWrites)
	if err != nil {
		return nil, err
	}
	if len(writes) == 1 && string(writes[0][0]) != "0" {
		warnings = append(warnings, fmt.Sprintf("the role can write to %s tables; one that can only select is safer", spoken(string(writes[0][0]))))
	}
	return warnings, nil
}

func tooPowerful(power string) error {
	return refused(nil, "the role of the source %s; use one that can only select what audiences need", power)
}

// maxSchemaColumns bounds what the schema of a source shows.
const maxSchemaColumns = 20_000

const pgTables = `
select n.nspname, c.relname, a.attname, a.atttypid::text, (not a.attnotnull)::text
  from pg_catalog.pg_class c
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
  join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
 where c.relkind in ('r', 'p', 'v', 'm', 'f')
   and n.nspname not in ('pg_catalog', 'information_schema') and n.nspname not like 'pg\_%'
   and pg_catalog.has_schema_privilege(n.oid, 'usage')
   and pg_catalog.has_column_privilege(c.oid, a.attnum, 'select')
 order by 1, 2, a.attnum
 limit 20000`

func (p *pgSession) tables(ctx context.Context) ([]Table, error) {
	rows, err := p.query(ctx, pgTables)
	if err != nil {
		return nil, err
	}
	oids := map[uint32]bool{}
	for _, row := range rows {
		oids[oidOf(row[3])] = true
	}
	if err := p.learnTypes(ctx, slices.Sorted(maps.Keys(oids))); err != nil {
		return nil, err
	}
	var list tableList
	for _, row := range rows {
		list.add(string(row[0]), string(row[1]), TableColumn{string(row[2]), p.typeOf(oidOf(row[3])), string(row[4]) == "true"})
	}
	return list, nil
}

package audience

// The statements of this file read the privileges of a role. Each returns the name of
// an object and the statement that revokes the privilege from the role that has it:
// the login, a role that it can set, or public.

// heldBy are the roles whose privileges the login has or can set, and the owner to
// which an object can be given instead.
const heldBy = `
with held (oid) as (
  select r.oid from pg_catalog.pg_roles r where pg_catalog.pg_has_role(session_user, r.oid, 'member') or r.rolname = current_user
), heir (owner) as (
  select coalesce((select pg_catalog.quote_ident(r.rolname) from pg_catalog.pg_database d join pg_catalog.pg_roles r on r.oid = d.datdba
                    where d.datname = pg_catalog.current_database() and d.datdba not in (select oid from held)), 'postgres')
)`

// grantee is the role of a privilege; a is a row of aclexplode.
const grantee = `case when a.grantee = 0 then 'public' else a.grantee::pg_catalog.regrole::text end`

// pgWrites finds tables, columns, schemas and the database that the login can change
// outside Lemma's transaction. Sequences are omitted: a read-only transaction does
// not advance them, and no data is lost if one advances.
const pgWrites = heldBy + `, tables as (
  select c.oid, c.relowner, c.relacl, pg_catalog.format('%I.%I', n.nspname, c.relname) as name
    from pg_catalog.pg_class c
    join pg_catalog.pg_namespace n on n.oid = c.relnamespace
   where c.relkind in ('r', 'p', 'v', 'f')
     and n.nspname not in ('pg_catalog', 'information_schema') and n.nspname not like 'pg\_t%'
     and exists (select from held where pg_catalog.has_schema_privilege(held.oid, n.oid, 'usage'))
     and exists (select from held where pg_catalog.has_any_column_privilege(held.oid, c.oid, 'insert, update')
                                     or pg_catalog.has_table_privilege(held.oid, c.oid, 'delete, truncate'))
)
select name, pg_catalog.format('revoke %s on table %s from %s', pg_catalog.string_agg(pg_catalog.lower(a.privilege_type), ', '), name, ` +
	grantee + `)
  from tables, pg_catalog.aclexplode(relacl) a
 where a.privilege_type in ('INSERT', 'UPDATE', 'DELETE', 'TRUNCATE') and relowner not in (select oid from held)
   and (a.grantee = 0 or a.grantee in (select oid from held))
 group by name, a.grantee
union all
select name, pg_catalog.format('revoke %s (%I) on table %s from %s', pg_catalog.lower(a.privilege_type), t.attname, name, ` + grantee + `)
  from tables, pg_catalog.pg_attribute t, pg_catalog.aclexplode(t.attacl) a
 where t.attrelid = tables.oid and a.privilege_type in ('INSERT', 'UPDATE') and relowner not in (select oid from held)
   and (a.grantee = 0 or a.grantee in (select oid from held))
union all
select name, pg_catalog.format('alter table %s owner to %s', name, heir.owner) from tables, heir where relowner in (select oid from held)
union all
select pg_catalog.format('the schema %I', n.nspname),
       case when n.nspowner in (select oid from held)
         then pg_catalog.format('alter schema %I owner to %s', n.nspname, (select owner from heir))
            else pg_catalog.format('revoke create on schema %I from %s', n.nspname, ` + grantee + `) end
  from pg_catalog.pg_namespace n, pg_catalog.aclexplode(coalesce(n.nspacl, pg_catalog.acldefault('n', n.nspowner))) a
 where a.privilege_type = 'CREATE' and (a.grantee = 0 or a.grantee in (select oid from held))
   and n.nspname not in ('pg_catalog', 'information_schema') and n.nspname not like 'pg\_t%'
union all
select pg_catalog.format('the database %I', d.datname),
       case when d.datdba in (select oid from held) then pg_catalog.format('alter database %I owner to postgres', d.datname)
            else pg_catalog.format('revoke create on database %I from %s', d.datname, ` + grantee + `) end
  from pg_catalog.pg_database d, pg_catalog.aclexplode(coalesce(d.datacl, pg_catalog.acldefault('d', d.datdba))) a
 where d.datname = pg_catalog.current_database() and a.privilege_type = 'CREATE' and (a.grantee = 0 or a.grantee in (select oid from held))
 limit 100`

// functionsHead and functionsTail surround the condition for functions p, since
// privileges are read only for the few that satisfy it.
const (
	functionsHead = heldBy + `, candidates as materialized (
  select p.oid, p.proacl, p.proowner, p.proname, p.pronamespace
    from pg_catalog.pg_proc p
   where (`
	functionsTail = `)
), functions as (
  select p.oid, p.proacl, p.proowner, pg_catalog.format('%I.%I', n.nspname, p.proname) as name
    from candidates p
    join pg_catalog.pg_namespace n on n.oid = p.pronamespace
   where exists (select from held where pg_catalog.has_schema_privilege(held.oid, n.oid, 'usage'))
     and exists (select from held where pg_catalog.has_function_privilege(held.oid, p.oid, 'execute'))
)
select name, case when f.proowner in (select oid from held)
         then pg_catalog.format('alter function %s owner to %s', f.oid::pg_catalog.regprocedure, (select owner from heir))
                  else pg_catalog.format('revoke execute on function %s from %s', f.oid::pg_catalog.regprocedure, ` + grantee + `) end
  from functions f, pg_catalog.aclexplode(coalesce(f.proacl, pg_catalog.acldefault('f', f.proowner))) a
 where a.privilege_type = 'EXECUTE' and (a.grantee = 0 or a.grantee in (select oid from held))
 order by 1, 2
 limit 200`
)

// pgPowers finds built-in functions that are not granted by default (they have an
// access list in every installation) and that access files, other servers or the
// settings of the server, functions of extensions that open
// connections or run programs, and functions in languages without a sandbox.
const pgPowers = functionsHead + `
    p.pronamespace = 'pg_catalog'::pg_catalog.regnamespace and p.proacl is not null and p.proname in (
      'pg_read_file', 'pg_read_binary_file', 'pg_ls_dir', 'pg_stat_file', 'lo_import', 'lo_export', 'pg_reload_conf',
      'pg_rotate_logfile', 'pg_switch_wal', 'pg_promote', 'pg_create_restore_point',
      'pg_backup_start', 'pg_backup_stop', 'pg_start_backup', 'pg_stop_backup',
      'pg_wal_replay_pause', 'pg_wal_replay_resume', 'pg_stat_reset', 'pg_log_backend_memory_contexts')
    or p.prolang in (select oid from pg_catalog.pg_language where not lanpltrusted and lanname not in ('internal', 'c', 'sql'))
    or p.oid in (select d.objid from pg_catalog.pg_depend d join pg_catalog.pg_extension e on e.oid = d.refobjid
                  where d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass and d.deptype = 'e'
                    and d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass

and e.extname in ('dblink', 'adminpack', 'http', 'pg_net', 'pg_cron', 'pg_background', 'plsh', 'pgagent', 'aws_s3', 'aws_lambda'))
` + functionsTail

// pgRisks finds built-in functions that are granted to public by default and have
// effects even in a read-only transaction.
const pgRisks = functionsHead + `
    p.pronamespace = 'pg_catalog'::pg_catalog.regnamespace and p.provolatile = 'v' and (p.proname in (
      'pg_terminate_backend', 'pg_cancel_backend', 'pg_notify', 'pg_logical_emit_message', 'pg_export_snapshot',
      'lo_creat', 'lo_create', 'lo_from_bytea', 'lo_open', 'lo_put', 'lo_truncate', 'lo_truncate64', 'lo_unlink', 'lowrite')
      or p.proname like 'pg\_advisory\_%' or p.proname like 'pg\_try\_advisory\_%')
` + functionsTail

// pgDefiners finds functions of the database that can write and run with the rights of
// another role than the login.
const pgDefiners = functionsHead + `
    p.prosecdef and p.provolatile = 'v' and p.proowner not in (select oid from held)
    and p.pronamespace <> 'pg_catalog'::pg_catalog.regnamespace
` + functionsTail

// pgFiltered finds tables of which the login sees only some rows. Such policies may be what
// the customer wants, so they are no reason to refuse the role, and none to set row_security
// off: a query of such a table would then fail, whatever its policies allow.
const pgFiltered = `
select pg_catalog.format('%I.%I', n.nspname, c.relname), ''
  from pg_catalog.pg_class c
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
 where c.relrowsecurity and pg_catalog.row_security_active(c.oid)
   and pg_catalog.has_schema_privilege(n.oid, 'usage') and pg_catalog.has_any_column_privilege(c.oid, 'select')
 order by 1
 limit 100`

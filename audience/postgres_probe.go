package audience

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"lemma/audience/sqltext"
)

// probeRoles reads every role that the login is or can set.
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
            else '' end,
       case when r.rolsuper then '' -- another login is needed: this one may be that of the administrator
            when r.rolname like 'pg\_%' then pg_catalog.format('revoke %I from %I', r.rolname, session_user)
            else pg_catalog.format('alter role %I nosuperuser nocreaterole nocreatedb noreplication nobypassrls', r.rolname) end
  from pg_catalog.pg_roles r
 where pg_catalog.pg_has_role(session_user, r.oid, 'member')
    or r.rolname = current_user`

func (p *pgSession) probe(ctx context.Context) (role, error) {
	rows, err := p.query(ctx, probeRoles)
	if err != nil {
		return role{}, err
	}
	if len(rows) == 0 || len(rows[0]) != 6 {
		return role{}, refused(nil, "the source does not return the privileges of its role")
	}
	r := role{version: "PostgreSQL " + sqltext.Printable(string(rows[0][0]))}
	for _, row := range rows {
		if power := string(row[4]); power != "" {
			r.powers = append(r.powers, powerOf(power, string(row[5]), len(r.powers)))
		}
	}
	if len(r.powers) > 0 {
		return r, nil // such a role has all privileges below
	}
	if encrypted, local := string(rows[0][1]), string(rows[0][2]); encrypted == "false" && local == "false" {
		r.warnings = append(r.warnings, "the connection is not encrypted")
	}
	if r.powers, err = p.findings(ctx, "may call %s, which acts outside of a transaction", pgPowers); err != nil {
		return role{}, err
	}
	r.writes, err = p.findings(ctx, "can write to %s", pgWrites)
	return r, err
}

// powerOf is a power of a role, with the statement that takes it away. Those that an error does not
// show are only counted.
func powerOf(power, revoke string, found int) (f finding) {
	if found >= maxFindings {
		return f
	}
	f.text = sqltext.Printable(power)
	if statement := sqltext.Statement(revoke); statement != "" {
		f.revoke = []string{statement}
	}
	return f
}

func (p *pgSession) risks(ctx context.Context) ([]finding, error) {
	found, err := p.findings(ctx,
		"may call %s: Lemma refuses the names of such functions in a query, and nothing else keeps one from being called", pgRisks)
	if err != nil {
		return nil, err
	}
	more, err := p.findings(ctx, "may call %s with the rights of another role", pgDefiners)
	if err != nil {
		return nil, err
	}
	filtered, err := p.findings(ctx,
		"reads of %s only the rows that policies of row security allow: others, also opt-outs, are missing without an error", pgFiltered)
	return append(append(found, more...), filtered...), err
}

// mostPrivileges is the largest limit of the statements that findings runs.
const mostPrivileges = 200

// findings runs a statement that returns, for each privilege of the role, the name of
// its object and the statement that revokes it, or an empty text.
func (p *pgSession) findings(ctx context.Context, format, statement string) ([]finding, error) {
	rows, err := p.query(ctx, statement)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	if len(rows) > mostPrivileges {
		return nil, malformed(errors.New("more privileges than were asked for"))
	}
	var f finding
	var names []string
	for _, row := range rows {
		if len(row) != 2 {
			return nil, malformed(nil)
		}
		if name := strings.TrimPrefix(sqltext.Printable(string(row[0])), "pg_catalog."); !slices.Contains(names, name) {
			names = append(names, name)
		}
		if revoke := sqltext.Statement(string(row[1])); revoke != "" {
			f.revoke = append(f.revoke, revoke)
		}
	}
	const most = 30
	text := strings.Join(names[:min(len(names), most)], ", ")
	if len(names) > most {
		text += fmt.Sprintf(" and %d more", len(names)-most)
	}
	f.text = fmt.Sprintf(format, text)
	return []finding{f}, nil
}

// maxSchemaColumns bounds the columns of a Schema.
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

func (p *pgSession) tables(ctx context.Context) (Schema, error) {
	rows, err := p.query(ctx, pgTables)
	if err != nil {
		return Schema{}, err
	}
	oids := map[uint32]bool{}
	for _, row := range rows {
		oids[oidOf(row[3])] = true
	}
	if err := p.loadTypes(ctx, slices.Sorted(maps.Keys(oids))); err != nil {
		return Schema{}, err
	}
	var list tableList
	for _, row := range rows {
		list.add(string(row[0]), string(row[1]), TableColumn{string(row[2]), p.typeOf(oidOf(row[3])), string(row[4]) == "true"})
	}
	return list.Schema, nil
}

package audience

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// pgSettings decide what a transaction reads, and bound it. A server, a database, a role or
// a pooler may have others: a read would miss rows, or have other texts, and no error.
// docs/concepts/sources.md lists them, and those that are left as they are. The limit of a
// statement is below that of the run, so that the source stops by itself.
func pgSettings(s span) []string {
	statement := milliseconds(s.response * 9 / 10)
	return []string{
		// Rows are whole, and come in the order of the first run.
		"gin_fuzzy_search_limit", "0", "synchronize_seqscans", "off",
		// Values have one text form. A pooler may not pass client_encoding on from the login.
		"client_encoding", "UTF8", "TimeZone", "UTC", "DateStyle", "ISO", "IntervalStyle", "iso_8601", "bytea_output", "hex",
		"extra_float_digits", "3", "xmlbinary", "base64", "quote_all_identifiers", "off",
		// A query has one meaning.
		"standard_conforming_strings", "on", "transform_null_equals", "off", "array_nulls", "on",
		"cursor_tuple_fraction", "1", "statement_timeout", statement, "lock_timeout", statement,
		"idle_in_transaction_session_timeout", milliseconds(idleTimeout), "transaction_timeout", milliseconds(s.total + idleTimeout)}
}

const beginReading = "begin isolation level repeatable read, read only"

// begin opens the first transaction, with the settings that this version of Postgres
// has.
func (p *pgSession) begin(ctx context.Context) error {
	if _, err := p.query(ctx, beginReading); err != nil {
		return err
	}
	var names, values []string
	for i := 0; i < len(p.settings); i += 2 {
		names, values = append(names, p.settings[i]), append(values, p.settings[i+1])
	}
	rows, err := p.query(ctx, `
select s.name, v.value, pg_catalog.set_config(s.name, v.value, true)
  from unnest($1::text[], $2::text[]) v (name, value)
  join pg_catalog.pg_settings s on pg_catalog.lower(s.name) = pg_catalog.lower(v.name)`, arrayLiteral(names), arrayLiteral(values))
	p.settings = p.settings[:0]
	for i, name := range names {
		if slices.ContainsFunc(rows, func(row [][]byte) bool { return strings.EqualFold(string(row[0]), name) }) {
			p.settings = append(p.settings, name, values[i])
		}
	}
	return err
}

// end rolls back, which also undoes settings of the query.
func (p *pgSession) end(ctx context.Context) error {
	_, err := p.query(ctx, "rollback")
	p.declared = false
	return err
}

// again repeats the settings that begin has found in the catalog. They are those of
// the transaction, since a pooler may use another connection each time.
func (p *pgSession) again(ctx context.Context) error {
	if _, err := p.query(ctx, beginReading); err != nil {
		return err
	}
	calls := make([]string, len(p.settings)/2)
	for i := range calls {
		calls[i] = fmt.Sprintf("pg_catalog.set_config($%d, $%d, true)", 2*i+1, 2*i+2)
	}
	_, err := p.query(ctx, "select "+strings.Join(calls, ", "), p.settings...)
	return err
}

// Package sqltext reads the text of a customer's query before a database gets it. It
// guarantees: a text that Check accepts is one statement without the functions and
// clauses that are denied, by the lexer of its kind of database.
//
// It is the first of three protections. The others, the parser of the database and a
// read-only transaction of a role that can only read, belong to package audience.
package sqltext

import (
	"fmt"
	"slices"
	"strings"
)

// The kinds of database, by whose lexer a text is read. MySQL includes MariaDB.
const (
	Postgres = "postgres"
	MySQL    = "mysql"
)

// MaxLength is the longest text, in bytes.
const MaxLength = 64 << 10

// denied are functions that have effects outside a read-only transaction, access other
// systems, change the limits, or run a text as SQL and so hide one of the others. The
// role is the actual protection; this list refuses known functions before the source
// gets them. A name that ends in * matches a prefix.
var denied = map[string][]string{
	Postgres: {
		"set_config", "lo_*", "loread", "lowrite", "pg_notify", "pg_advisory_*", "pg_try_advisory_*", "dblink*",
		"pg_read_*", "pg_ls_*", "pg_stat_file", "pg_file_*", "pg_terminate_backend", "pg_cancel_backend", "pg_reload_conf",
		"pg_rotate_logfile*", "pg_switch_*", "pg_create_*", "pg_drop_*", "pg_copy_*", "pg_logical_*", "pg_replication_*",
		"pg_export_snapshot",
		"pg_wal_replay_*", "pg_promote", "pg_backup_*", "pg_start_backup", "pg_stop_backup", "pg_stat_reset*", "pg_stat_statements_reset",
		"pg_log_*",
		"pg_prewarm", "pg_import_*", "pg_extension_config_dump", "pg_sync_*", "pg_restore_*", "pg_clear_*",
		"query_to_xml*", "cursor_to_xml*", "table_to_xml*", "schema_to_xml*", "database_to_xml*", "ts_stat", "ts_rewrite", "crosstab*",
		"connectby",
		"xpath_table", "nextval", "setval", "http*", "cron", "plpy*",
	},
	MySQL: {
		"load_file", "get_lock", "release_lock", "release_all_locks", "benchmark", "master_pos_wait", "source_pos_wait", "master_gtid_wait",
		"wait_for_executed_gtid_set", "wait_until_sql_thread_after_gtids", "sys_exec", "sys_eval", "sys_get", "sys_set", "lib_mysqludf_*",
		"nextval", "setval", "lastval", "http*", "ps_*", "set_config",
	},
}

// deniedPairs are pairs of words that no audience needs.
var deniedPairs = [][2]string{
	{"into", "outfile"}, {"into", "dumpfile"}, {"for", "update"}, {"for", "share"}, {"for", "no"}, {"for", "key"},
	{"lock", "in"}, {"value", "for"}, {"procedure", "analyse"},
}

// Fault is why a text is refused. Line and Column count from 1, or are 0 for a fault of
// the whole text.
type Fault struct {
	Line, Column int
	Detail       string
}

// Check returns why the text is not one plain select, or nil. It leaves syntax to the
// source, which parses the text alone and wrapped.
func Check(kind, sql string) *Fault {
	switch {
	case strings.TrimSpace(sql) == "":
		return &Fault{Detail: "the query is empty"}
	case len(sql) > MaxLength:
		return &Fault{Detail: fmt.Sprintf("the query is longer than %d bytes", MaxLength)}
	case strings.ContainsRune(sql, 0):
		return &Fault{Detail: "the query has a NUL"}
	}
	s := scanner{kind: kind, sql: sql}
	if err := s.run(); err != nil {
		line, column := Place(sql, len([]rune(sql[:s.start]))+1)
		return &Fault{line, column, err.Error()}
	}
	return nil
}

// FirstWord returns the first word of a text in lower case, after comments and
// parentheses; empty if the text begins otherwise.
func FirstWord(kind, sql string) string {
	s := scanner{kind: kind, sql: sql}
	for s.pos < len(s.sql) {
		from := s.pos
		if s.token() != nil {
			return ""
		}
		switch c := s.sql[from]; {
		case nameStart(c):
			return strings.ToLower(s.sql[from:s.pos])
		case !s.isLineComment(s.sql[from:]) && !strings.HasPrefix(s.sql[from:], "/*") && !s.isSpace(c) && c != '(':
			return ""
		}
	}
	return ""
}

func isDenied(kind, name string) bool {
	return slices.ContainsFunc(denied[kind], func(entry string) bool {
		prefix, all := strings.CutSuffix(entry, "*")
		return name == entry || all && strings.HasPrefix(name, prefix)
	})
}

package audience

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"

	"lemma"
)

// mysqlSetting is a variable of the server, and the SQL of its value.
type mysqlSetting struct{ name, value string }

// mysqlSettings decide what a session reads. A server, its init_connect or a proxy may
// set others: a read would end early, or have other rows or texts, and no error.
// docs/concepts/sources.md lists them, and those that are left as they are.
var mysqlSettings = []mysqlSetting{
	// Rows and values are whole.
	{"sql_select_limit", "18446744073709551615"},
	{"group_concat_max_len", "67108864"}, // more than a row may have
	// So many bytes decide the order of texts. In MySQL, greatest alone is a decimal.
	{"max_sort_length", "cast(greatest(@@max_sort_length, 1024) as unsigned)"},
	// Texts arrive as they are. Those that a query makes, such as of numbers, have the
	// collation of the database, so that they compare.
	{"character_set_client", "'utf8mb4'"},
	{"character_set_results", "'utf8mb4'"},
	{"collation_connection", "if(left(@@collation_database, 8) = 'utf8mb4_', @@collation_database, 'utf8mb4_general_ci')"},
	// A query has one meaning: quotes and backslashes, nulls, times, divisions, names.
	{"sql_mode", "'STRICT_TRANS_TABLES'"},
	{"sql_auto_is_null", "0"},
	{"time_zone", "'+00:00'"},
	{"default_week_format", "0"},
	{"div_precision_increment", "4"},
	{"lc_time_names", "'en_US'"},
	// Errors end in a line number, and grants have quoted names.
	{"lc_messages", "'en_US'"},
	{"sql_quote_show_create", "1"},
	// The end of a transaction begins no other, so that an idle connection has none.
	{"completion_type", "'NO_CHAIN'"},
}

// mariadbSettings are those of MariaDB. A recursive query ends after
// max_recursive_iterations with the rows that it has, where MySQL has an error.
var mariadbSettings = []mysqlSetting{
	{"system_versioning_asof", "default"},
	{"max_recursive_iterations", "4294967295"},
	{"old_mode", "''"},
	{"default_regex_flags", "''"},
}

// settings returns those of this server, whose names depend on its version.
func (m *mysqlSession) settings() []mysqlSetting {
	list, isolation := slices.Clone(mysqlSettings), "transaction"
	switch {
	case m.isMariaDB():
		list = append(list, mariadbSettings...)
		if m.isBefore(11, 1) {
			isolation = "tx"
		}
	case !m.isBefore(8, 0):
		list = append(list, mysqlSetting{"windowing_use_high_precision", "1"})
	}
	return append(list, mysqlSetting{isolation + "_isolation", "'REPEATABLE-READ'"}, mysqlSetting{isolation + "_read_only", "1"})
}

func (m *mysqlSession) isBefore(major, minor int) bool {
	var x, y int
	_, _ = fmt.Sscanf(m.version, "%d.%d", &x, &y)
	return x < major || x == major && y < minor
}

// bounds make the source end what takes too long. Lemma ends it too.
func (m *mysqlSession) bounds(s span) []mysqlSetting {
	longest := mysqlSetting{"max_execution_time", fmt.Sprint(s.total.Milliseconds())}
	if m.isMariaDB() {
		longest = mysqlSetting{"max_statement_time", fmt.Sprintf("%.3f", s.total.Seconds())}
	}
	return []mysqlSetting{longest, {"lock_wait_timeout", "10"}, {"net_write_timeout", "600"}}
}

// set sets all in one statement, of which the server accepts all or nothing.
func (m *mysqlSession) set(ctx context.Context, all []mysqlSetting) error {
	list := make([]string, len(all))
	for i, s := range all {
		list[i] = "session " + s.name + " = " + s.value
	}
	_, err := m.conn.ExecContext(ctx, "set "+strings.Join(list, ", "), nil)
	if err == nil {
		return nil
	}
	fault := m.fault(err)
	if fault.Code != CodeQuery {
		return fault
	}
	detail := fault.Fields[0].Detail
	reported, _ := errors.AsType[*mysql.MySQLError](err)
	for _, s := range all {
		if reported != nil && strings.Contains(reported.Message, "'"+s.name+"'") {
			detail = s.String()
		}
	}
	return refused(fault.Cause, "the source does not accept the settings of a session: %s", detail)
}

func (s mysqlSetting) String() string { return s.name + " = " + s.value }

// kept is a condition that is true in a session with the setting.
func (s mysqlSetting) kept() string {
	value := s.value
	if value == "default" {
		value = "'DEFAULT'"
	}
	return "@@" + s.name + " <=> " + value
}

// realTime is false if the variable timestamp stops the time of now(). It is only read,
// since a server may let nobody set it.
const realTime = "abs(@@timestamp - unix_timestamp(sysdate())) < 60"

// verify reads the settings back, in the transaction that they are for: a proxy may
// have dropped them, or use another connection for each transaction.
func (m *mysqlSession) verify(ctx context.Context) error {
	list := m.settings()
	columns := make([]string, len(list), len(list)+3)
	for i, s := range list {
		columns[i] = s.kept()
	}
	columns = append(columns, realTime, "@@collation_database", "coalesce(database(), '')")
	rows, err := m.query(ctx, "select "+strings.Join(columns, ", ")+" limit 1")
	if e, ok := errors.AsType[*lemma.Error](err); ok && e.Code == CodeQuery {
		return refused(e.Cause, "the source does not return the settings of a session: %s", e.Fields[0].Detail)
	}
	if err != nil {
		return err
	}
	if len(rows) != 1 || len(rows[0]) != len(columns) {
		return malformed(nil)
	}
	return m.accept(list, rows[0][:len(list)], rows[0][len(list):])
}

func (m *mysqlSession) accept(list []mysqlSetting, kept, rest []string) error {
	for i, s := range list {
		if kept[i] != "1" {
			return refused(nil, "a session of the source does not keep the setting %s; a proxy before it must pass settings on", s)
		}
	}
	if rest[0] != "1" {
		return refused(nil, "a session of the source has the setting timestamp, as by init_connect: its time is not that of the clock")
	}
	if !strings.EqualFold(rest[2], m.database) {
		return refused(nil, "a session of the source is in another database than the DSN names, as by init_connect or a proxy")
	}
	if m.collation = "utf8mb4_bin"; collationName.MatchString(rest[1]) {
		m.collation = rest[1]
	}
	return nil
}

var collationName = regexp.MustCompile(`^utf8mb4_[a-z0-9_]+$`)

package audience

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lemma"
)

// oddServer is a server of its own, which does not do what a login asks for. Each session
// begins with the statements of its init_connect.
type oddServer struct {
	bundle
	*server
}

func newOddServer(t *testing.T) oddServer {
	t.Helper()
	mariadbServer(t) // skips the test without the binaries
	s, err := startMariaDB("--character-set-server=latin1", "--skip-character-set-client-handshake")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.stop)
	s.exec(t, "create database shop character set utf8mb4", "create database other",
		"create table shop.people (id varchar(40) primary key, email varchar(100), name varchar(100), opted_out tinyint not null) "+
			"character set utf8mb4",
		`insert into shop.people values ('k1', 'a@x.example', convert(x'5a6fc3ab' using utf8mb4), 0),
			('k2', 'b@x.example', convert(x'f09f8e89' using utf8mb4), 0), ('k3', 'c@x.example', convert(x'e4b889' using utf8mb4), 0),
			('k4', 'a@x.example', 'opted out, with the address of k1', 1), (convert(x'6bf09f9880' using utf8mb4), 'e@x.example', 'smile', 0)`,
		"create table shop.kept (id int primary key) with system versioning", "insert into shop.kept values (1), (2)",
		"create table shop.notes (note text)", "insert into shop.notes values (concat(repeat('x', 100), 'b')), (concat(repeat('x', 100), 'a'))")
	b := setup(t, dev)
	t.Cleanup(b.Close)
	b.DSN = s.login(t, "reader", "grant select on shop.* to $")
	return oddServer{b, s}
}

// begins makes each session begin with a statement. Connections of an earlier one are not
// used again, since they belong to another source.
func (o *oddServer) begins(t *testing.T, statement string) {
	t.Helper()
	o.exec(t, "set global init_connect = '"+strings.ReplaceAll(statement, "'", "''")+"'")
	o.source = o.addSource(t, MySQL, o.DSN)
}

var oddPeople = map[string]string{"k1": "Zoë", "k2": "🎉", "k3": "三", "k4": "opted out, with the address of k1", "k😀": "smile"}

func TestSettingsOfAServerDoNotChangeReads(t *testing.T) {
	t.Parallel()
	o := newOddServer(t)
	t.Run("people", o.readsPeople)
	t.Run("values", o.readsValues)
	t.Run("a fault has its line", o.placesFaults)
	t.Run("sessions that cannot be set", o.refusesSessions)
}

// readsPeople reads people in every way, from sessions that would have fewer of them, or
// other texts.
func (o *oddServer) readsPeople(t *testing.T) {
	for _, statement := range []string{"", "set sql_select_limit = 2", "set sql_select_limit = 0", "set names utf8mb3", "set names latin1",
		"set character_set_results = null", "set collation_connection = latin1_swedish_ci", "set autocommit = 0",
		"set session transaction isolation level read uncommitted, read write", "set completion_type = 1", "set old_mode = ''"} {
		t.Run(statement, func(t *testing.T) { o.begins(t, statement); o.readsAll(t) })
	}
}

// readsAll reads the people by a stream, a count, a lookup, a condition and the keys.
func (o *oddServer) readsAll(t *testing.T) {
	t.Helper()
	x, err := o.Create(t.Context(), o.Workspace, NewAudience{ID: lemma.NewID(), DataSourceID: o.source, Name: lemma.NewID().String(),
		SQL: "select * from people", KeyColumn: "id", EmailColumn: "email", OptedOutColumn: "opted_out"})
	if err != nil {
		t.Fatal(err)
	}
	streamed, err := o.collect(t, x.ID, "name")
	names, want := map[string]string{}, map[string]string{}
	for _, row := range streamed {
		names[row.Key] = row.Payload
	}
	for key, name := range oddPeople {
		want[key] = `{"name":"` + name + `"}`
	}
	ofStream := maps.Clone(want)
	ofStream["k4"] = "{}" // opted out
	if diff := cmp.Diff(ofStream, names); diff != "" || err != nil {
		t.Errorf("stream: %s, %v", diff, err)
	}
	counts, err := o.Audiences.Count(t.Context(), o.Workspace, x.ID, "")
	if err != nil || counts.Rows != 5 || counts.Sendable != 3 || counts.Unsubscribed != 1 {
		t.Errorf("count: %+v, %v", counts, err)
	}
	keys := slices.Sorted(maps.Keys(oddPeople))
	for range 2 { // on one connection
		found, err := o.Lookup(t.Context(), o.Workspace, x.ID, []string{"name"}, keys, 1<<20)
		names = map[string]string{}
		for key, row := range found.Rows {
			names[key] = row.Payload
		}
		if diff := cmp.Diff(want, names); diff != "" || err != nil {
			t.Errorf("lookup: %s, %v", diff, err)
		}
	}
	var people []Person
	for _, key := range keys {
		people = append(people, Person{key, time.Now()})
	}
	matched, err := o.Matching(t.Context(), o.Workspace, o.source, "select p.profile_key from people p", people)
	if err != nil || len(matched) != len(keys) {
		t.Errorf("condition: %v, %v", matched, err)
	}
	var read []string
	err = o.Keys(t.Context(), o.Workspace, o.source, "select id from people", Period{time.Now(), time.Now()},
		func(key []byte) { read = append(read, string(key)) })
	if slices.Sort(read); err != nil || !slices.Equal(read, keys) {
		t.Errorf("keys: %q, %v", read, err)
	}
}

// readsValues has for each setting what a query returns, whatever the server's value is.
// Settings whose effect no query shows are read as they are.
func (o *oddServer) readsValues(t *testing.T) {
	for _, c := range []struct{ setting, value, want string }{
		{"group_concat_max_len = 4", "(select group_concat(email order by id) from people where id < 'k3')", "a@x.example,b@x.example"},
		{"max_sort_length = 64", "(select right(note, 1) from notes order by note limit 1)", "a"},
		{"max_sort_length = 4096", "@@max_sort_length", "4096"},
		{"sql_mode = 'ANSI_QUOTES,PIPES_AS_CONCAT,NO_BACKSLASH_ESCAPES'", `concat("a\\b", 1 || 0)`, `a\b1`},
		{"sql_auto_is_null = 1", "@@sql_auto_is_null + 0", "0"},
		{"time_zone = '+05:00'", "from_unixtime(0)", "1970-01-01 00:00:00"},
		{"default_week_format = 3", "week('2026-01-01')", "0"},
		{"div_precision_increment = 0", "1 / 3", "0.3333"},
		{"lc_time_names = 'de_DE'", "date_format('2026-03-01', '%M')", "March"},
		{"lc_messages = 'de_DE'", "@@lc_messages", "en_US"},
		{"sql_quote_show_create = 0", "@@sql_quote_show_create + 0", "1"},
		{"completion_type = 1", "@@completion_type", "NO_CHAIN"},
		{"tx_isolation = 'READ-COMMITTED'", "@@tx_isolation", "REPEATABLE-READ"},
		{"tx_read_only = 0", "@@tx_read_only + 0", "1"},
		{"system_versioning_asof = '2001-01-01'", "(select count(*) from kept)", "2"},
		{"max_recursive_iterations = 3",
			"(with recursive n as (select 1 as i union all select i + 1 from n where i < 2000) select count(*) from n)", "2000"},
		{"old_mode = 'UTF8_IS_UTF8MB3,ZERO_DATE_TIME_CAST'", "(select convert(name using utf8) from people where id = 'k2')", "🎉"},
		{"default_regex_flags = 'EXTENDED'", "'a b' regexp 'a b'", "1"},
	} {
		t.Run(c.setting, func(t *testing.T) {
			o.begins(t, "set session "+c.setting)
			a := o.addAudience(t, "select 'k' as id, cast("+c.value+" as char) as email")
			rows, err := o.collect(t, a.ID)
			if err != nil || len(rows) != 1 || rows[0].Email != c.want {
				t.Errorf("%+v, %v, want %q", rows, err, c.want)
			}
		})
	}
}

// placesFaults has a server whose errors are in German.
func (o *oddServer) placesFaults(t *testing.T) {
	o.begins(t, "set lc_messages = 'de_DE'")
	_, err := o.validate(t, "select id, email\nform people where")
	if e, ok := errors.AsType[*lemma.Error](err); !ok || len(e.Fields) != 1 || e.Fields[0].Line != 2 {
		t.Errorf("%v", err)
	}
}

func (o *oddServer) refusesSessions(t *testing.T) {
	o.exec(t, "grant select on other.* to reader@'127.0.0.1'")
	for statement, want := range map[string]string{
		"use other":                  "is in another database than the DSN names",
		"set timestamp = 1000000000": "has the setting timestamp",
	} {
		o.begins(t, statement)
		report, err := o.TestSource(t.Context(), o.Workspace, o.source)
		if wantCode(t, err, CodeRefused); !strings.Contains(report.Source.TestError, want) {
			t.Errorf("%s: %s", statement, report.Source.TestError)
		}
	}
}

package audience

import (
	"fmt"
	"strings"
	"testing"

	"lemma/audience/value"
)

// mysqlValues are columns of every type, each with two rows. A key of none is refused.
var mysqlValues = []struct {
	name   string
	column string // its definition in a table
	values [2]string
	k      string // an expression; empty for the column itself
	kind   value.Type
	data   [2]string // in a payload
	keys   []string  // as a key
}{
	{name: "tinyint", column: "tinyint", values: [2]string{"-7", "127"}, kind: value.Integer, data: [2]string{"-7", "127"},
		keys: []string{"-7", "127"}},
	{name: "boolean", column: "boolean", values: [2]string{"true", "false"}, kind: value.Integer, data: [2]string{"1", "0"},
		keys: []string{"1", "0"}},
	{name: "int zerofill", column: "int(8) zerofill", values: [2]string{"7", "0"}, kind: value.Integer, data: [2]string{"7", "0"},
		keys: []string{"7", "0"}},
	{name: "bigint", column: "bigint", values: [2]string{"-9223372036854775808", "9223372036854775807"}, kind: value.Integer,
		data: [2]string{"-9223372036854775808", "9223372036854775807"}, keys: []string{"-9223372036854775808", "9223372036854775807"}},
	{name: "bigint unsigned", column: "bigint unsigned", values: [2]string{"18446744073709551615", "7"}, kind: value.Integer,
		data: [2]string{"18446744073709551615", "7"}, keys: []string{"18446744073709551615", "7"}},
	{name: "year", column: "year", values: [2]string{"2026", "0"}, kind: value.Integer, data: [2]string{"2026", "0"},
		keys: []string{"2026", "0"}},
	{name: "bit", column: "bit(1)", values: [2]string{"1", "0"}, kind: value.Boolean, data: [2]string{"true", "false"}},
	{name: "bits", column: "bit(16)", values: [2]string{"513", "48"}, kind: value.Integer, data: [2]string{"513", "48"},
		keys: []string{"513", "48"}},
	{name: "64 bits", column: "bit(64)", values: [2]string{"18446744073709551615", "0"}, kind: value.Integer,
		data: [2]string{"18446744073709551615", "0"}, keys: []string{"18446744073709551615", "0"}},
	// MariaDB describes this as a bit, and sends the text of a number.
	{name: "maximum of bits", column: "bit(8)", values: [2]string{"5", "4"}, k: "(select max(v) from $)", kind: value.Integer,
		data: [2]string{"5", "5"}, keys: []string{"5"}},
	{name: "double", column: "double", values: [2]string{"1e6", "-1234567.5"}, kind: value.Number, data: [2]string{"1000000", "-1234567.5"},
		keys: []string{"1000000", "-1234567.5"}},
	{name: "odd double", column: "double", values: [2]string{"1e22", "1e-7"}, kind: value.Number, data: [2]string{"1e+22", "1e-07"},
		keys: []string{"1e+22", "1e-07"}},
	{name: "long double", column: "double", values: [2]string{"0.1", "123456789012345680000"}, kind: value.Number,
		data: [2]string{"0.1", "123456789012345680000"}, keys: []string{"0.1", "123456789012345680000"}},
	{name: "double zerofill", column: "double zerofill", values: [2]string{"1.5", "0"}, kind: value.Number, data: [2]string{"1.5", "0"},
		keys: []string{"1.5", "0"}},
	{name: "double of digits", column: "double(12,2)", values: [2]string{"2000000", "1.1"}, kind: value.Number,
		data: [2]string{"2000000", "1.1"}, keys: []string{"2000000", "1.1"}},
	{name: "product of digits", column: "double(12,2)", values: [2]string{"1.1", "2"}, k: "v * v", kind: value.Number,
		data: [2]string{"1.21", "4"}, keys: []string{"1.21", "4"}},
	{name: "sum of digits", column: "double(12,2)", values: [2]string{"0.1", "0.2"}, k: "(select sum(v) from $)", kind: value.Number,
		data: [2]string{"0.3", "0.3"}, keys: []string{"0.3"}},
	{name: "double by double", column: "double", values: [2]string{"1e6", "2"}, k: "v / 3", kind: value.Number,
		data: [2]string{"333333.3333333333", "0.6666666666666666"}, keys: []string{"333333.3333333333", "0.6666666666666666"}},
	{name: "float", column: "float", values: [2]string{"1234567", "0.1"}, kind: value.Number, data: [2]string{"1234567", "0.1"}},
	{name: "float of digits", column: "float(12,2)", values: [2]string{"1234567.5", "1.1"}, kind: value.Number,
		data: [2]string{"1234567.5", "1.1"}},
	{name: "float as decimal", column: "float", values: [2]string{"1234567", "16777216"}, k: "cast(v as decimal(20))", kind: value.Number,
		data: [2]string{"1234567", "16777216"}, keys: []string{"1234567", "16777216"}},
	{name: "decimal", column: "decimal(30,2)", values: [2]string{"99999999999999999999999999.50", "7"}, kind: value.Number,
		data: [2]string{"99999999999999999999999999.50", "7.00"}, keys: []string{"99999999999999999999999999.50", "7.00"}},
	{name: "whole decimal", column: "decimal(20)", values: [2]string{"99999999999999999999", "-7"}, kind: value.Number,
		data: [2]string{"99999999999999999999", "-7"}, keys: []string{"99999999999999999999", "-7"}},
	{name: "decimal zerofill", column: "decimal(12,2) zerofill", values: [2]string{"1.5", "0"}, kind: value.Number,
		data: [2]string{"1.50", "0.00"}, keys: []string{"1.50", "0.00"}},
	{name: "quotient", column: "int", values: [2]string{"13", "-14"}, k: "v / 3", kind: value.Number, data: [2]string{"4.3333", "-4.6667"},
		keys: []string{"4.3333", "-4.6667"}},
	{name: "average", column: "int", values: [2]string{"13", "14"}, k: "(select avg(v / 3) from $)", kind: value.Number,
		data: [2]string{"4.50000000", "4.50000000"}, keys: []string{"4.50000000"}},
	{name: "varchar", column: "varchar(50)", values: [2]string{"'Key '", "'käse'"}, kind: value.Text, data: [2]string{`"Key "`, `"käse"`},
		keys: []string{"käse"}},
	{name: "char", column: "char(10)", values: [2]string{"'Key '", "'käse'"}, kind: value.Text, data: [2]string{`"Key"`, `"käse"`},
		keys: []string{"Key", "käse"}},
	{name: "without padding", column: "char(10) collate utf8mb4_nopad_bin", values: [2]string{"'Key '", "'käse'"}, kind: value.Text,
		data: [2]string{`"Key"`, `"käse"`}, keys: []string{"Key", "käse"}},
	{name: "latin1", column: "varchar(50) character set latin1", values: [2]string{"'ü'", "'x'"}, kind: value.Text,
		data: [2]string{`"ü"`, `"x"`}, keys: []string{"ü", "x"}},
	{name: "text", column: "text", values: [2]string{"'a\"b'", "'😀'"}, kind: value.Text, data: [2]string{`"a\"b"`, `"😀"`},
		keys: []string{`a"b`, "😀"}},
	{name: "enum", column: "enum('7', 'red')", values: [2]string{"'red'", "'7'"}, kind: value.Text, data: [2]string{`"red"`, `"7"`},
		keys: []string{"red", "7"}},
	{name: "set", column: "set('a', 'b')", values: [2]string{"'a,b'", "'b'"}, kind: value.Text, data: [2]string{`"a,b"`, `"b"`},
		keys: []string{"a,b", "b"}},
	{name: "uuid", column: "uuid", values: [2]string{"'00000000-0000-0000-0000-00000000000A'", "'00000000-0000-0000-0000-000000000007'"},
		kind: value.Text, data: [2]string{`"00000000-0000-0000-0000-00000000000a"`, `"00000000-0000-0000-0000-000000000007"`},
		keys: []string{"00000000-0000-0000-0000-00000000000a", "00000000-0000-0000-0000-000000000007"}},
	{name: "inet4", column: "inet4", values: [2]string{"'10.0.0.1'", "'1.2.3.4'"}, kind: value.Text, data: [2]string{`"10.0.0.1"`,
		`"1.2.3.4"`},
		keys: []string{"10.0.0.1", "1.2.3.4"}},
	{name: "inet6", column: "inet6", values: [2]string{"'::1'", "'2001:db8::1'"}, kind: value.Text, data: [2]string{`"::1"`, `"2001:db8::1"`},
		keys: []string{"::1", "2001:db8::1"}},
	{name: "time", column: "time", values: [2]string{"'-12:00:01'", "'838:59:59'"}, kind: value.Other,
		data: [2]string{`"-12:00:01"`, `"838:59:59"`}, keys: []string{"-12:00:01", "838:59:59"}},
	{name: "part of a second", column: "time(3)", values: [2]string{"'00:00:01.5'", "'00:00:00'"}, kind: value.Other,
		data: [2]string{`"00:00:01.500"`, `"00:00:00.000"`}, keys: []string{"00:00:01.500", "00:00:00.000"}},
	{name: "computed time", column: "int", values: [2]string{"1", "2"}, k: "sec_to_time(v * 1.5)", kind: value.Other,
		data: [2]string{`"00:00:01.5"`, `"00:00:03.0"`}, keys: []string{"00:00:01.5", "00:00:03.0"}},
	{name: "varbinary", column: "varbinary(20)", values: [2]string{"'bin'", "'é'"}, kind: value.Other, data: [2]string{`"bin"`, `"é"`},
		keys: []string{"bin", "é"}},
	{name: "blob", column: "blob", values: [2]string{"'bin'", "'é'"}, kind: value.Other, data: [2]string{`"bin"`, `"é"`},
		keys: []string{"bin", "é"}},
	{name: "binary", column: "binary(4)", values: [2]string{"'bin'", "'é'"}, kind: value.Other, data: [2]string{`"bin` + "\uFFFD" + `"`, `"é` +
		"\uFFFD\uFFFD" + `"`}},
	{name: "binary as hex", column: "binary(4)", values: [2]string{"'bin'", "0xff"}, k: "lower(hex(v))", kind: value.Text,
		data: [2]string{`"62696e00"`, `"ff000000"`}, keys: []string{"62696e00", "ff000000"}},
	{name: "point", column: "point", values: [2]string{"point(1, 2)", "point(1, 2)"}, k: "if(n > 0, null, v)", kind: value.Other,
		data: [2]string{"null", "null"}},
	{name: "json", column: "json", values: [2]string{`'{"a": 1}'`, `'[1]'`}, kind: value.Text, data: [2]string{`"{\"a\": 1}"`, `"[1]"`},
		keys: []string{`{"a": 1}`, "[1]"}},
	{name: "date", column: "date", values: [2]string{"'2026-01-02'", "'2026-00-00'"}, kind: value.Date,
		data: [2]string{`"2026-01-02"`, "null"}},
	{name: "datetime", column: "datetime(3)", values: [2]string{"'2026-01-02 03:04:05.5'", "'2026-01-00 01:02:03'"}, kind: value.Timestamp,
		data: [2]string{`"2026-01-02T03:04:05.500Z"`, "null"}},
	{name: "timestamp", column: "timestamp null", values: [2]string{"'2026-01-02 03:04:05'", "null"}, kind: value.Timestamp,
		data: [2]string{`"2026-01-02T03:04:05Z"`, "null"}},
	{name: "computed datetime", column: "int", values: [2]string{"1", "2"}, k: "from_unixtime(v * 1.5)", kind: value.Timestamp,
		data: [2]string{`"1970-01-01T00:00:01.5Z"`, `"1970-01-01T00:00:03.0Z"`}},
	{name: "null", column: "int", values: [2]string{"1", "2"}, k: "null", kind: value.Other, data: [2]string{"null", "null"},
		keys: []string{}},
}

// TestMySQLTypes checks that the values of each type are those that the type of the
// column promises, the same in all reads, and that a key that is read is found.
func TestMySQLTypes(t *testing.T) {
	t.Parallel()
	b, s := mariadbShop(t, dev)
	tables := []string{}
	for i, v := range mysqlValues {
		name := fmt.Sprintf("$.v%d", i)
		tables = append(tables, "create table "+name+" (n int primary key, email varchar(50), v "+v.column+")",
			fmt.Sprintf("insert into %s values (1, '1@example.com', %s), (2, '2@example.com', %s)", name, v.values[0], v.values[1]))
	}
	s.schema(t, &b, tables...)
	for i, v := range mysqlValues {
		table := fmt.Sprintf("v%d", i)
		k := strings.ReplaceAll(v.k, "$", table)
		if k == "" {
			k = "v"
		}
		for form, sql := range map[string]string{
			"table":   "select n, email, " + k + " as k from " + table,
			"derived": "select * from (select distinct n, email, " + k + " as k from " + table + ") as x",
		} {
			t.Run(v.name+" in a "+form, func(t *testing.T) {
				b.wantData(t, sql, v.kind, v.data)
				if v.keys == nil {
					b.wantNoKey(t, sql)
				} else {
					b.wantSameKeys(t, sql, v.keys)
				}
			})
		}
	}
}

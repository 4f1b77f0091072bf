package audience

import (
	"database/sql/driver"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"lemma/audience/value"
	"lemma/audience/wire"
)

// Types of the protocol (enum_field_types) that need more than their Type.
const (
	mysqlOldDecimal, mysqlDecimal = 0x00, 0xf6
	mysqlFloat, mysqlDouble       = 0x04, 0x05
	mysqlTime, mysqlBit           = 0x0b, 0x10
	mysqlVector, mysqlGeometry    = 0xf2, 0xff
	mysqlString                   = 0xfe
)

const (
	binaryCharacters  = 63 // the character set of bytes
	flagEnum, flagSet = 1 << 8, 1 << 11
	flagZerofill      = 1 << 6
	notFixed          = 31 // decimals of numbers that have as many as each value needs
)

// mysqlColumn is a column of a result.
type mysqlColumn struct {
	Column
	code     byte
	zerofill bool
	decimals byte // digits after the point that the server shows
}

func mysqlColumnOf(r wire.Column) mysqlColumn {
	c := mysqlColumn{Column: Column{Name: r.Name}, code: r.Type, decimals: r.Decimals}
	bytes := r.Charset == binaryCharacters
	c.zerofill = r.Flags&flagZerofill != 0
	c.Type = mysqlTypeOf(c.code, bytes)
	switch {
	case r.Flags&(flagEnum|flagSet) != 0:
		c.Type = value.Text
	case c.code == mysqlBit && r.Width == 1:
		c.Type = value.Boolean
	case c.code == mysqlFloat:
		c.NoKey = "is a float, which has some 7 digits; cast it to decimal"
	case c.code == mysqlString && bytes && r.Width > 0, c.code == mysqlGeometry, c.code == mysqlVector:
		c.NoKey = "has bytes; use a text of them, such as hex() or bin_to_uuid()"
	}
	return c
}

// mysqlTypeOf maps the types of the protocol.
func mysqlTypeOf(code byte, bytes bool) value.Type {
	switch code {
	case 0x01, 0x02, 0x03, 0x08, 0x09, 0x0d, mysqlBit: // tiny, short, long, longlong, int24, year
		return value.Integer
	case mysqlOldDecimal, mysqlDecimal, mysqlFloat, mysqlDouble:
		return value.Number
	case 0x07, 0x0c: // timestamp, datetime
		return value.Timestamp
	case 0x0a, 0x0e: // date, newdate
		return value.Date
	case 0xf5:
		return value.JSON
	case 0xf7, 0xf8: // enum, set
		return value.Text
	case 0x0f, 0xf9, 0xfa, 0xfb, 0xfc, 0xfd, mysqlString: // varchar, blobs, var_string
		if !bytes {
			return value.Text
		}
	}
	return value.Other
}

// mysqlType maps the types of information_schema.
func mysqlType(name string) value.Type {
	switch name {
	case "TINYINT", "SMALLINT", "MEDIUMINT", "INT", "INTEGER", "BIGINT", "YEAR", "BIT":
		return value.Integer
	case "BIT(1)":
		return value.Boolean
	case "DECIMAL", "FLOAT", "DOUBLE":
		return value.Number
	case "VARCHAR", "CHAR", "TEXT", "TINYTEXT", "MEDIUMTEXT", "LONGTEXT", "ENUM", "SET", "UUID", "INET4", "INET6":
		return value.Text
	case "DATETIME", "TIMESTAMP":
		return value.Timestamp
	case "DATE":
		return value.Date
	case "JSON":
		return value.JSON
	}
	return value.Other
}

// mysqlColumns are the definitions of the columns of a query, or nil before they are known.
type mysqlColumns []mysqlColumn

func mysqlColumnsOf(raw []wire.Column) mysqlColumns {
	var list mysqlColumns
	for _, r := range raw {
		list = append(list, mysqlColumnOf(r))
	}
	return list
}

func (list mysqlColumns) columns() []Column {
	columns := make([]Column, len(list))
	for i, c := range list {
		columns[i] = c.Column
	}
	return columns
}

func (list mysqlColumns) named(name string) mysqlColumn {
	for _, c := range list {
		if c.Name == name {
			return c
		}
	}
	return mysqlColumn{Column: Column{Name: name}}
}

// all returns the column list of a select of all columns.
func (list mysqlColumns) all() string {
	if !slices.ContainsFunc(list, func(c mysqlColumn) bool { return c.read() != c.quoted() }) {
		return "audience.*"
	}
	names := make([]string, len(list))
	for i, c := range list {
		names[i] = c.Name
	}
	return list.selected(names)
}

// selected returns the column list of a select of these names.
func (list mysqlColumns) selected(names []string) string {
	read := make([]string, len(names))
	for i, name := range names {
		c := list.named(name)
		if read[i] = c.read(); read[i] != c.quoted() {
			read[i] += " as " + backquoted(name)
		}
	}
	return strings.Join(read, ", ")
}

func backquoted(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

func (c mysqlColumn) quoted() string { return "audience." + backquoted(c.Name) }

// read is the expression that reads the column. Bits and padded numbers are not the
// text of a number, and a computed double has further digits than the server shows.
func (c mysqlColumn) read() string {
	switch {
	case c.code == mysqlBit, c.zerofill && c.isDecimal():
		return c.quoted() + " + 0"
	case c.code == mysqlDouble && c.isFixed():
		return c.rounded()
	}
	return c.quoted()
}

// compared is the expression that finds a key that has been read. A quotient has
// further digits than are read. A column that can have an index is compared as it is.
func (c mysqlColumn) compared() string {
	switch {
	case c.isDecimal() && c.isFixed():
		return c.rounded()
	case c.code == mysqlTime:
		return "cast(" + c.quoted() + " as char)"
	}
	return c.read()
}

func (c mysqlColumn) isDecimal() bool { return c.code == mysqlDecimal || c.code == mysqlOldDecimal }

// isFixed reports whether the server shows as many digits after the point of each value.
func (c mysqlColumn) isFixed() bool { return c.decimals > 0 && c.decimals < notFixed }

func (c mysqlColumn) rounded() string { return fmt.Sprintf("round(%s, %d)", c.quoted(), c.decimals) }

// values returns what keys are as values of the column, without those that it cannot
// have, in as many values as there are keys.
func (c mysqlColumn) values(keys []string) []driver.Value {
	values := make([]driver.Value, 0, len(keys))
	for _, key := range keys {
		if v, ok := c.value(key); ok {
			values = append(values, v)
		}
	}
	fill := driver.Value(nil)
	if len(values) > 0 {
		fill = values[0]
	}
	for len(values) < len(keys) {
		values = append(values, fill)
	}
	return values
}

// value passes numbers as numbers, since as texts they would not be compared exactly.
func (c mysqlColumn) value(key string) (driver.Value, bool) {
	switch {
	case c.code == mysqlDouble:
		n, err := strconv.ParseFloat(key, 64)
		return n, err == nil && string(appendFloat(nil, n, 64)) == key
	case c.code != mysqlBit && c.Type != value.Integer:
		return key, true
	}
	if n, err := strconv.ParseInt(key, 10, 64); err == nil {
		return n, strconv.FormatInt(n, 10) == key
	}
	n, err := strconv.ParseUint(key, 10, 64)
	return n, err == nil && strconv.FormatUint(n, 10) == key
}

// appendFloat writes a number like JSON.stringify: with an exponent only if it is very
// large or very small.
func appendFloat(dst []byte, n float64, bits int) []byte {
	format := byte('f')
	if size := max(n, -n); size != 0 && (size < 1e-6 || size >= 1e21) {
		format = 'e'
	}
	return strconv.AppendFloat(dst, n, format, -1, bits)
}

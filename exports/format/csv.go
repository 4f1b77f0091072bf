package format

import (
	"io"
	"strconv"
	"time"
)

// csvFile is CSV by RFC 4180, with a header, in UTF-8. A null is an empty cell.
type csvFile struct {
	lines
	columns []Column
	keep    bool
}

func newCSV(to io.Writer, columns []Column, o Options) *csvFile {
	f := &csvFile{lines: newLines(to), columns: columns, keep: o.KeepFormulas}
	for i, c := range columns {
		if i > 0 {
			f.buffer = append(f.buffer, ',')
		}
		f.buffer = append(f.buffer, c.Name...)
	}
	f.buffer = append(f.buffer, '\r', '\n')
	return f
}

// Row is part of Encoder.
func (f *csvFile) Row(values [][]byte) error {
	for i, c := range f.columns {
		if i > 0 {
			f.buffer = append(f.buffer, ',')
		}
		if values[i] == nil {
			continue
		}
		if err := f.cell(c, values[i]); err != nil {
			return err
		}
	}
	f.buffer = append(f.buffer, '\r', '\n')
	return f.rowEnded()
}

func (f *csvFile) cell(c Column, raw []byte) error {
	switch c.Type {
	case Text:
		f.buffer = appendCell(f.buffer, raw, !f.keep && isFormula(raw))
	case JSON:
		f.buffer = appendCell(f.buffer, jsonOf(raw), false) // it begins with none of the characters, or with a number
	case Bool:
		f.buffer = strconv.AppendBool(f.buffer, raw[0] != 0)
	case Int:
		n, err := intOf(raw)
		f.buffer = strconv.AppendInt(f.buffer, n, 10)
		return err
	case Time:
		at, err := timeOf(raw)
		f.buffer = at.AppendFormat(f.buffer, time.RFC3339Nano)
		return err
	default:
		id, err := idOf(c, raw)
		f.buffer = append(f.buffer, id...)
		return err
	}
	return nil
}

// isFormula reports whether a spreadsheet computes a text: it begins with = + - @, a tab
// or a line break. A sign before digits only is a number, such as a phone number.
func isFormula(text []byte) bool {
	if len(text) == 0 {
		return false
	}
	switch text[0] {
	case '=', '@', '\t', '\r', '\n':
		return true
	case '+', '-':
		for _, b := range text[1:] {
			if b < '0' || b > '9' {
				return true
			}
		}
	}
	return false
}

// appendCell appends a text, in quotes if it needs them, and behind an apostrophe, which
// makes a spreadsheet show it as it is.
func appendCell(to, text []byte, apostrophe bool) []byte {
	quoted := false
	for _, b := range text {
		if b == '"' || b == ',' || b == '\r' || b == '\n' {
			quoted = true
			break
		}
	}
	if len(text) == 0 { // an empty text is no null
		return append(to, '"', '"')
	}
	if quoted {
		to = append(to, '"')
	}
	if apostrophe {
		to = append(to, '\'')
	}
	if !quoted {
		return append(to, text...)
	}
	for _, b := range text {
		if b == '"' {
			to = append(to, '"')
		}
		to = append(to, b)
	}
	return append(to, '"')
}

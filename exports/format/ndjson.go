package format

import (
	"encoding/json"
	"io"
	"strconv"
	"time"
	"unicode/utf8"
)

// ndjsonFile is a JSON object per line, with all columns.
type ndjsonFile struct {
	lines
	columns []Column
	names   [][]byte // of the columns, with the punctuation before the value
}

func newNDJSON(to io.Writer, columns []Column) *ndjsonFile {
	f := &ndjsonFile{lines: newLines(to), columns: columns}
	for i, c := range columns {
		before := `,"`
		if i == 0 {
			before = `{"`
		}
		f.names = append(f.names, []byte(before+c.Name+`":`))
	}
	return f
}

// Row is part of Encoder.
func (f *ndjsonFile) Row(values [][]byte) error {
	for i, c := range f.columns {
		f.buffer = append(f.buffer, f.names[i]...)
		if values[i] == nil {
			f.buffer = append(f.buffer, "null"...)
			continue
		}
		if err := f.value(c, values[i]); err != nil {
			return err
		}
	}
	f.buffer = append(f.buffer, '}', '\n')
	return f.rowEnded()
}

func (f *ndjsonFile) value(c Column, raw []byte) (err error) {
	switch c.Type {
	case Text:
		f.buffer = appendJSONText(f.buffer, raw)
	case JSON:
		f.buffer, err = appendCompact(f.buffer, jsonOf(raw))
	case Bool:
		f.buffer = strconv.AppendBool(f.buffer, raw[0] != 0)
	case Int:
		var n int64
		n, err = intOf(raw)
		f.buffer = strconv.AppendInt(f.buffer, n, 10)
	case Time:
		var at time.Time
		at, err = timeOf(raw)
		f.buffer = append(at.AppendFormat(append(f.buffer, '"'), time.RFC3339Nano), '"')
	default:
		var id string
		id, err = idOf(c, raw)
		f.buffer = append(append(append(f.buffer, '"'), id...), '"')
	}
	return err
}

// appendJSONText appends a text as JSON.
func appendJSONText(to, text []byte) []byte {
	for _, b := range text {
		if b < 0x20 || b == '"' || b == '\\' || b >= utf8.RuneSelf {
			quoted, _ := json.Marshal(string(text)) // a text never fails
			return append(to, quoted...)
		}
	}
	return append(append(append(to, '"'), text...), '"')
}

// appendCompact appends JSON without line breaks between its tokens.
func appendCompact(to, raw []byte) ([]byte, error) {
	compact, err := json.Marshal(json.RawMessage(raw))
	return append(to, compact...), err
}

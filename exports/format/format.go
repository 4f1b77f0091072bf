// Package format writes rows of Postgres as CSV, NDJSON or Parquet. It guarantees:
//
//   - A file holds each row that was written, in that order, with the same columns.
//   - The memory of a file does not grow with the number of its rows.
//   - A spreadsheet computes no cell of a CSV file, unless formulas are kept.
//
// Rows come in the binary format of Postgres, so that a value is converted once.
package format

import (
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"

	"lemma"
)

// Type is how the value of a column is read and written.
type Type int

// The types of columns.
const (
	Text         Type = iota // text
	ID                       // uuid; written with the prefix of its column
	Notification             // bytea of 32 bytes: origin and key; written as the id of a notification
	Time                     // timestamptz; written in UTC
	Int                      // int2, int4 or int8
	Bool                     // bool
	JSON                     // text that is JSON, or jsonb
)

// Column is a column of a file.
type Column struct {
	Name   string
	Type   Type
	Prefix string // of an ID
}

// The formats.
const (
	CSV     = "csv"
	NDJSON  = "ndjson"
	Parquet = "parquet"
)

// Formats are the names of the formats.
var Formats = []string{CSV, NDJSON, Parquet}

// Options are the choices of a file.
type Options struct {
	KeepFormulas bool // of CSV: cells are written as they are
}

// Encoder writes the rows of one file.
type Encoder interface {
	// Row writes a row: a binary value of Postgres for each column, nil for null. It keeps none of them.
	Row(values [][]byte) error
	// Close writes the end of the file.
	Close() error
}

// New returns an encoder of a format.
func New(name string, to io.Writer, columns []Column, o Options) (Encoder, error) {
	switch name {
	case CSV:
		return newCSV(to, columns, o), nil
	case NDJSON:
		return newNDJSON(to, columns), nil
	case Parquet:
		return newParquet(to, columns), nil
	}
	return nil, fmt.Errorf("there is no format %q", name)
}

// Extension is the end of the name of a file in a format.
func Extension(name string) string { return "." + name }

// MediaType is the media type of a format.
func MediaType(name string) string {
	switch name {
	case CSV:
		return "text/csv; charset=utf-8"
	case NDJSON:
		return "application/x-ndjson"
	}
	return "application/vnd.apache.parquet"
}

// bufferSize is how many bytes are written together.
const bufferSize = 256 << 10

// epoch of Postgres's times.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// timeOf reads a timestamptz.
func timeOf(raw []byte) (time.Time, error) {
	micros, err := intOf(raw)
	return epoch.Add(time.Duration(micros) * time.Microsecond), err
}

// intOf reads an int2, int4 or int8.
func intOf(raw []byte) (int64, error) {
	switch len(raw) {
	case 2:
		return int64(int16(binary.BigEndian.Uint16(raw))), nil
	case 4:
		return int64(int32(binary.BigEndian.Uint32(raw))), nil
	case 8:
		return int64(binary.BigEndian.Uint64(raw)), nil
	}
	return 0, fmt.Errorf("a number has %d bytes", len(raw))
}

// idOf reads an id.
func idOf(c Column, raw []byte) (string, error) {
	switch {
	case c.Type == Notification && len(raw) == 32:
		return lemma.FormatNotificationID(uuid.UUID(raw[:16]), uuid.UUID(raw[16:])), nil
	case c.Type == ID && len(raw) == 16:
		return lemma.FormatID(c.Prefix, uuid.UUID(raw)), nil
	}
	return "", fmt.Errorf("the id in column %s has %d bytes", c.Name, len(raw))
}

// jsonOf reads JSON. The binary format of jsonb begins with its version, 1.
func jsonOf(raw []byte) []byte {
	if len(raw) > 0 && raw[0] == 1 {
		return raw[1:]
	}
	return raw
}

// lines writes rows that have been appended to its buffer.
type lines struct {
	to     io.Writer
	buffer []byte
}

func newLines(to io.Writer) lines { return lines{to: to, buffer: make([]byte, 0, bufferSize+4096)} }

// rowEnded writes the buffer once it is full.
func (l *lines) rowEnded() error {
	if len(l.buffer) < bufferSize {
		return nil
	}
	return l.flush()
}

// Close is part of Encoder.
func (l *lines) Close() error { return l.flush() }

func (l *lines) flush() error {
	_, err := l.to.Write(l.buffer)
	l.buffer = l.buffer[:0]
	return err
}

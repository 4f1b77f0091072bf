package format_test

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/parquet-go/parquet-go"

	"lemma"
	"lemma/exports/format"
	"lemma/pgtest"
)

var columns = []format.Column{
	{Name: "z_id", Type: format.ID, Prefix: lemma.PrefixCampaign}, {Name: "notification", Type: format.Notification},
	{Name: "text", Type: format.Text}, {Name: "at", Type: format.Time}, {Name: "small", Type: format.Int}, {Name: "big", Type: format.Int},
	{Name: "yes", Type: format.Bool}, {Name: "data", Type: format.JSON}, {Name: "binary_data", Type: format.JSON},
}

// encode writes rows that Postgres makes of texts.
func encode(t *testing.T, name string, o format.Options, texts ...any) []byte {
	t.Helper()
	var file bytes.Buffer
	e, err := format.New(name, &file, columns, o)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := pgtest.DB(t).Query(t.Context(), `
		select $1::uuid, uuid_send($1) || uuid_send($1), t, timestamptz '2026-03-04 05:06:07.089+02', -7::int2, 5000000000, true,
			'{"a": [1,
			 2]}', '{"b": null}'::jsonb
		from unnest($2::text[]) t`, pgx.QueryResultFormats{1}, uuid.UUID{1, 2, 3}, texts)
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		if err := e.Row(rows.RawValues()); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(rows.Err(), e.Row(make([][]byte, len(columns))), e.Close()); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

var (
	id           = lemma.FormatID(lemma.PrefixCampaign, uuid.UUID{1, 2, 3})
	notification = lemma.FormatNotificationID(uuid.UUID{1, 2, 3}, uuid.UUID{1, 2, 3})
)

func TestCSV(t *testing.T) {
	t.Parallel()
	texts := []any{"plain", `a "quoted", text`, "two\nlines", "", "=1+1", "+491701234567", "+49 1", "-5", "-5+A1", "@x", "\tx", nil}
	read, err := csv.NewReader(bytes.NewReader(encode(t, format.CSV, format.Options{}, texts...))).ReadAll()
	if err != nil || len(read) != len(texts)+2 {
		t.Fatalf("%d rows, %v", len(read), err)
	}
	want := []string{id, notification, "plain", "2026-03-04T03:06:07.089Z", "-7", "5000000000", "true", "{\"a\": [1,\n\t\t\t 2]}",
		`{"b": null}`}
	if d := cmp.Diff(want, read[1]); d != "" {
		t.Error(d)
	}
	var got []string
	for _, row := range read[2 : len(read)-1] {
		got = append(got, row[2])
	}
	if d := cmp.Diff([]string{`a "quoted", text`, "two\nlines", "", "'=1+1", "+491701234567", "'+49 1", "-5", "'-5+A1", "'@x", "'\tx",
		""}, got); d != "" {
		t.Error(d)
	}
	if strings.Trim(strings.Join(read[len(read)-1], ""), ",") != "" {
		t.Errorf("a row of nulls: %q", read[len(read)-1])
	}
	kept := encode(t, format.CSV, format.Options{KeepFormulas: true}, "=1+1")
	if !bytes.Contains(kept, []byte(",=1+1,")) {
		t.Errorf("not kept: %s", kept)
	}
}

func TestNDJSON(t *testing.T) {
	t.Parallel()
	lines := bytes.Split(bytes.TrimSpace(encode(t, format.NDJSON, format.Options{}, "plain", "a \"b\"\n=ü", nil)), []byte("\n"))
	if len(lines) != 4 {
		t.Fatalf("%d lines: %s", len(lines), lines)
	}
	var row map[string]any
	if err := json.Unmarshal(lines[1], &row); err != nil {
		t.Fatalf("%v: %s", err, lines[1])
	}
	want := map[string]any{"z_id": id, "notification": notification, "text": "a \"b\"\n=ü", "at": "2026-03-04T03:06:07.089Z", "small": -7.0,
		"big": 5e9, "yes": true, "data": map[string]any{"a": []any{1.0, 2.0}}, "binary_data": map[string]any{"b": nil}}
	if d := cmp.Diff(want, row); d != "" {
		t.Error(d)
	}
	if string(lines[3]) != `{"z_id":null,"notification":null,"text":null,"at":null,"small":null,"big":null,"yes":null,`+
		`"data":null,"binary_data":null}` {
		t.Errorf("a row of nulls: %s", lines[3])
	}
}

func TestParquet(t *testing.T) {
	t.Parallel()
	file := encode(t, format.Parquet, format.Options{}, "plain", "=x", nil)
	type row struct {
		ID           *string    `parquet:"z_id"`
		Notification *string    `parquet:"notification"`
		Text         *string    `parquet:"text"`
		At           *time.Time `parquet:"at,timestamp(microsecond)"`
		Small        *int64     `parquet:"small"`
		Big          *int64     `parquet:"big"`
		Yes          *bool      `parquet:"yes"`
		Data         *string    `parquet:"data"`
	}
	r := parquet.NewGenericReader[row](bytes.NewReader(file))
	read := make([]row, 10)
	n, err := r.Read(read)
	if n != 4 || err != nil && !errors.Is(err, io.EOF) {
		t.Fatalf("%d rows, %v", n, err)
	}
	text, at, small, big, yes, data := "plain", time.Date(2026, 3, 4, 3, 6, 7, 89e6, time.UTC), int64(-7), int64(5e9), true,
		"{\"a\": [1,\n\t\t\t 2]}"
	if d := cmp.Diff(row{&id, &notification, &text, &at, &small, &big, &yes, &data}, read[0]); d != "" {
		t.Error(d)
	}
	if read[2].Text != nil || read[3] != (row{}) || *read[1].Text != "=x" {
		t.Errorf("%+v", read[1:4])
	}
}

// A row group of large values ends early, so that few bytes are in memory.
func TestParquetGroupsAreBounded(t *testing.T) {
	t.Parallel()
	var file bytes.Buffer
	e, err := format.New(format.Parquet, &file, []format.Column{{Name: "text", Type: format.Text}}, format.Options{})
	if err != nil {
		t.Fatal(err)
	}
	row := [][]byte{bytes.Repeat([]byte("x"), 1<<20)}
	for range 80 {
		if err := e.Row(row); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	read, err := parquet.OpenFile(bytes.NewReader(file.Bytes()), int64(file.Len()))
	if err != nil {
		t.Fatal(err)
	}
	var sizes []int64
	for _, group := range read.RowGroups() {
		sizes = append(sizes, group.NumRows())
	}
	if !slices.Equal(sizes, []int64{32, 32, 16}) {
		t.Errorf("groups have %v MiB", sizes)
	}
}

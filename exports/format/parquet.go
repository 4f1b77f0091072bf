package format

import (
	"io"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"
)

// A row group of the file is in memory until it has so many rows or bytes of values.
const (
	groupRows  = 50_000
	groupBytes = 32 << 20
)

// parquetFile is Parquet, compressed with Zstandard. All columns are optional.
type parquetFile struct {
	to      *parquet.GenericWriter[any]
	columns []Column
	places  []int // of the columns in the schema, which orders them by name
	row     parquet.Row
	rows    int // in the open row group
	bytes   int // of their values
}

func newParquet(to io.Writer, columns []Column) *parquetFile {
	group := parquet.Group{}
	for _, c := range columns {
		group[c.Name] = parquet.Optional(nodeOf(c.Type))
	}
	schema := parquet.NewSchema("export", group)
	f := &parquetFile{columns: columns, row: make(parquet.Row, len(columns))}
	for _, c := range columns {
		leaf, _ := schema.Lookup(c.Name)
		f.places = append(f.places, leaf.ColumnIndex)
	}
	f.to = parquet.NewGenericWriter[any](to, schema, parquet.Compression(&zstd.Codec{}), parquet.CreatedBy("lemma", "", ""))
	return f
}

func nodeOf(t Type) parquet.Node {
	switch t {
	case Int:
		return parquet.Int(64)
	case Bool:
		return parquet.Leaf(parquet.BooleanType)
	case Time:
		return parquet.Timestamp(parquet.Microsecond)
	case JSON:
		return parquet.JSON()
	}
	return parquet.String()
}

// Row is part of Encoder.
func (f *parquetFile) Row(values [][]byte) error {
	for i, c := range f.columns {
		v, level := parquet.NullValue(), 0
		if values[i] != nil {
			var err error
			if v, err = valueOf(c, values[i]); err != nil {
				return err
			}
			level = 1
			f.bytes += len(values[i])
		}
		f.row[f.places[i]] = v.Level(0, level, f.places[i])
	}
	if _, err := f.to.WriteRows([]parquet.Row{f.row}); err != nil {
		return err
	}
	if f.rows++; f.rows < groupRows && f.bytes < groupBytes {
		return nil
	}
	f.rows, f.bytes = 0, 0
	return f.to.Flush()
}

// Close is part of Encoder.
func (f *parquetFile) Close() error { return f.to.Close() }

func valueOf(c Column, raw []byte) (parquet.Value, error) {
	switch c.Type {
	case Text:
		return parquet.ByteArrayValue(raw), nil
	case JSON:
		return parquet.ByteArrayValue(jsonOf(raw)), nil
	case Bool:
		return parquet.BooleanValue(raw[0] != 0), nil
	case Int:
		n, err := intOf(raw)
		return parquet.Int64Value(n), err
	case Time:
		at, err := timeOf(raw)
		return parquet.Int64Value(at.UnixMicro()), err
	}
	id, err := idOf(c, raw)
	return parquet.ByteArrayValue([]byte(id)), err
}

package wire

import (
	"encoding/binary"
	"fmt"
)

// Column is a column of a result as the server defines it (Protocol::ColumnDefinition41).
type Column struct {
	Name     string
	Charset  uint16
	Width    uint32
	Type     byte // enum_field_types
	Flags    uint16
	Decimals byte // digits after the point that the server shows
}

func typesOf(columns []Column) []byte {
	types := make([]byte, len(columns))
	for i, c := range columns {
		types[i] = c.Type
	}
	return types
}

func readColumn(body []byte) (Column, error) {
	cut := fmt.Errorf("%w: a column of a result is cut", ErrMalformed)
	var name []byte
	at := 0
	for i := range 6 { // catalog, schema, table, its own name, the column, its own name
		length, size, ok := lengthEncoded(body[at:])
		if !ok || length > uint64(len(body)-at-size) {
			return Column{}, cut
		}
		if i == 4 {
			name = body[at+size : at+size+int(length)]
		}
		at += size + int(length)
	}
	if len(body) < at+12 { // the length of what follows, character set, width, type, flags, decimals
		return Column{}, cut
	}
	fixed := body[at+1:]
	return Column{Name: string(name), Charset: binary.LittleEndian.Uint16(fixed), Width: binary.LittleEndian.Uint32(fixed[2:]),
		Type: fixed[6], Flags: binary.LittleEndian.Uint16(fixed[7:]), Decimals: fixed[9]}, nil
}

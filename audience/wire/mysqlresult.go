package wire

import "encoding/binary"

// mysqlResult follows the packets of one result: definitions of columns, rows, the end.
// The driver returns io.EOF after the last row, but also for a value that is longer than
// its packet, and for a response that has no result. So the end of a result is what these
// packets show, and only if the driver returned as many rows.
type mysqlResult struct {
	noMarks     bool // CLIENT_DEPRECATE_EOF: no packet marks the end of the definitions
	cached      bool // MARIADB_CLIENT_CACHE_METADATA: a response may come without definitions
	definitions int  // that are missing
	mark        bool // the packet after the definitions is missing
	rows        int
	open, ended bool

	binary   bool   // of a prepared statement
	prepared []byte // the types of the columns of the statement that was prepared last
	types    []byte // of this result
}

// Capabilities of a login that determine the packets of a result. MariaDB has its own in
// the last bytes of the filler, unless the client is one of MySQL.
const (
	clientLongPassword  = 1 << 0 // CLIENT_MYSQL in MariaDB
	clientDeprecateEOF  = 1 << 24
	clientCacheMetadata = 1 << 4
)

// login reads the capabilities from the driver's response to the greeting, with its header.
func (r *mysqlResult) login(answer []byte) {
	if len(answer) < 4+32 {
		return
	}
	capabilities := binary.LittleEndian.Uint32(answer[4:])
	r.noMarks = capabilities&clientDeprecateEOF != 0
	r.cached = capabilities&clientLongPassword == 0 && binary.LittleEndian.Uint32(answer[4+28:])&clientCacheMetadata != 0
}

// Commands that return rows.
const (
	comPrepare = 0x16
	comExecute = 0x17
)

// command begins another response.
func (r *mysqlResult) command(kind byte) {
	r.binary = kind == comExecute
	r.reset()
}

func (r *mysqlResult) reset() {
	r.definitions, r.mark, r.rows, r.open, r.ended = 0, false, 0, false, false
}

// begin has the first packet of a result: the number of columns, and for a client that
// caches definitions whether they follow.
func (r *mysqlResult) begin(columns int, rest []byte) {
	r.reset()
	r.open, r.mark = true, !r.noMarks
	if !r.cached || len(rest) == 0 || rest[0] == 1 {
		r.definitions = columns
	}
	r.types = r.types[:0]
	if r.definitions == 0 && len(r.prepared) == columns {
		r.types = append(r.types, r.prepared...)
	}
}

// collecting is true for the definitions of a result whose rows can be shortened.
func (r *mysqlResult) collecting() bool { return r.binary && r.open && r.definitions > 0 }

// inRows reports whether the next packet is a row whose form is known, or ends them.
func (r *mysqlResult) inRows() bool {
	return r.binary && r.open && r.definitions == 0 && !r.mark && len(r.types) > 0
}

// packet has another packet of the response: a definition as a whole if it is collected, and of others
// the first byte. A row of a text result would begin with 0xfe only if its first value had 16 MB.
func (r *mysqlResult) packet(body []byte) error {
	switch {
	case !r.open || body[0] == 0xff:
		r.open = false
	case r.definitions > 0:
		return r.definition(body)
	case r.mark:
		r.mark = false
	case body[0] != 0xfe:
		r.rows++
	default:
		r.open, r.ended = false, true
	}
	return nil
}

func (r *mysqlResult) definition(body []byte) error {
	r.definitions--
	if !r.binary {
		return nil
	}
	column, err := readColumn(body)
	r.types = append(r.types, column.Type)
	return err
}

// complete reports whether the server ended the result after so many rows.
func (r *mysqlResult) complete(rows int) bool { return r.ended && r.rows == rows }

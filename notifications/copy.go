package notifications

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/pgerr"
)

// ErrRepeated reports that a chunk with Copy set has a key that is stored already.
// The transaction is aborted: repeat the chunk in a new one, with Copy unset.
var ErrRepeated = errors.New("a key of the chunk is stored already")

var copiedColumns = []string{"workspace_id", "origin_id", "key", "batch_id", "ordinal", "profile_key", "address", "payload"}

// The statements by which rows are copied, without and with a conversion. The columns are copiedColumns.
const (
	copyPlain      = `copy notifications (workspace_id, origin_id, key, batch_id, ordinal, profile_key, address, payload) from stdin binary`
	copyConverting = `copy notifications (workspace_id, origin_id, key, batch_id, ordinal, profile_key, address, payload, converts)
		from stdin binary`
)

// copyIntents writes all intents of a chunk by COPY, or none (ErrRepeated), at half
// the cost of an insert with "on conflict". Rows go in the order of their keys, so
// that two copies never wait for each other.
func copyIntents(ctx context.Context, tx pgx.Tx, c Chunk, send []Recipient, at places) error {
	sql := copyPlain
	if c.Converts {
		sql = copyConverting
	}
	conn := tx.Conn()
	if t, ok := conn.Config().Tracer.(pgx.CopyFromTracer); ok { // which pgx calls in its own CopyFrom
		ctx = t.TraceCopyFromStart(ctx, conn, pgx.TraceCopyFromStartData{TableName: pgx.Identifier{"notifications"},
			ColumnNames: copiedColumns})
		defer t.TraceCopyFromEnd(ctx, conn, pgx.TraceCopyFromEndData{})
	}
	tag, err := conn.PgConn().CopyFrom(ctx, newCopied(c, send, at), sql)
	switch {
	case pgerr.Is(err, pgerr.Unique):
		return ErrRepeated
	case err == nil && int(tag.RowsAffected()) != len(send):
		return fmt.Errorf("%d of %d rows were copied", tag.RowsAffected(), len(send))
	}
	return err
}

// copied reads intents in the binary format of COPY. pgx.Conn.CopyFrom, which finds the
// encoding of every value by its types, takes four times as long.
type copied struct {
	send     []Recipient
	at       places
	converts bool
	head     []byte // with which every row begins: its number of columns, workspace_id and origin_id
	next     int
	row      []byte // the memory of the current row
	left     []byte // of it
}

// copySignature begins the binary format; flags and an empty extension follow.
const copySignature = "PGCOPY\n\xff\r\n\x00" + "\x00\x00\x00\x00" + "\x00\x00\x00\x00"

func newCopied(c Chunk, send []Recipient, at places) *copied {
	columns := uint16(len(copiedColumns))
	if c.Converts {
		columns++
	}
	head := binary.BigEndian.AppendUint16(nil, columns)
	head = copyUUID(copyUUID(head, c.WorkspaceID), c.OriginID)
	return &copied{send: send, at: at, converts: c.Converts, head: head, left: []byte(copySignature)}
}

// Read implements io.Reader.
func (r *copied) Read(to []byte) (n int, err error) {
	for {
		moved := copy(to[n:], r.left)
		n, r.left = n+moved, r.left[moved:]
		switch {
		case n == len(to):
			return n, nil
		case r.next == len(r.send):
			return n, io.EOF
		}
		r.row = r.appendRow(r.row[:0], r.next)
		r.next, r.left = r.next+1, r.row
	}
}

func (r *copied) appendRow(to []byte, i int) []byte {
	one := &r.send[i]
	to = append(to, r.head...)
	to = copyUUID(copyUUID(to, one.Key), r.at.batchOf[i])
	to = binary.BigEndian.AppendUint16(append(to, 0, 0, 0, 2), uint16(r.at.ordinals[i]))
	to = copyText(copyText(copyText(to, one.ProfileKey), one.Address), one.Payload)
	if r.converts {
		to = append(to, 0, 0, 0, 1, 1)
	}
	return to
}

func copyUUID(to []byte, id uuid.UUID) []byte { return append(append(to, 0, 0, 0, 16), id[:]...) }

func copyText(to []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint32(to, uint32(len(s))), s...)
}

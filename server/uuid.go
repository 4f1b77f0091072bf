package server

import (
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// encodeUUIDs lets a connection send the bytes of each uuid.UUID. pgx would format its
// text and parse it again, which costs 2 µs of CPU: most of what it takes to send arrays.
func encodeUUIDs(conn *pgx.Conn) {
	types := conn.TypeMap()
	types.TryWrapEncodePlanFuncs = append([]pgtype.TryWrapEncodePlanFunc{wrapUUID}, types.TryWrapEncodePlanFuncs...)
}

func wrapUUID(value any) (pgtype.WrappedEncodePlanNextSetter, any, bool) {
	id, ok := value.(uuid.UUID)
	if !ok {
		return nil, nil, false
	}
	return &uuidPlan{}, pgtype.UUID{Bytes: id, Valid: true}, true
}

// uuidPlan encodes a uuid.UUID as a pgtype.UUID.
type uuidPlan struct{ next pgtype.EncodePlan }

// SetNext is pgtype.WrappedEncodePlanNextSetter.
func (p *uuidPlan) SetNext(next pgtype.EncodePlan) { p.next = next }

// Encode is pgtype.EncodePlan.
func (p *uuidPlan) Encode(value any, buf []byte) ([]byte, error) {
	return p.next.Encode(pgtype.UUID{Bytes: value.(uuid.UUID), Valid: true}, buf)
}

package server

import (
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
	"lemma/pgtest"
)

// IDs reach the database unchanged, in arrays, as null and as text.
func TestUUIDsAreSentAsBytes(t *testing.T) {
	t.Parallel()
	pool, err := OpenPool(t.Context(), Config{DatabaseURL: pgtest.DB(t).Config().ConnString()})
	must(t, err)
	t.Cleanup(pool.Close)
	conn, err := pool.Acquire(t.Context())
	must(t, err)
	defer conn.Release()
	if _, ok := conn.Conn().TypeMap().PlanEncode(pgtype.UUIDOID, pgtype.BinaryFormatCode, uuid.UUID{}).(*uuidPlan); !ok {
		t.Error("pgx sends the text of UUIDs")
	}
	id := lemma.NewID()
	var got uuid.UUID
	var all []uuid.UUID
	var isNull, isZero bool
	var text string
	must(t, conn.QueryRow(t.Context(), `select $1::uuid, $2::uuid[], $3::uuid is null, $4::uuid =
		'00000000-0000-0000-0000-000000000000', $5::text`, id, []uuid.UUID{id, {}}, (*uuid.UUID)(nil), uuid.Nil, id).
		Scan(&got, &all, &isNull, &isZero, &text))
	if got != id || len(all) != 2 || all[0] != id || all[1] != uuid.Nil || !isNull || !isZero || text != id.String() {
		t.Errorf("%s was sent; %s, %s, %t, %t, %q were received", id, got, all, isNull, isZero, text)
	}
}

package enrollment

import (
	"encoding/hex"
	"regexp"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
)

// RefusalKey is the key of a trigger's refusal: a repeated trigger has one refusal.
func RefusalKey(trigger uuid.UUID) uuid.UUID { return lemma.Key("refusal/1", string(trigger[:])) }

// OriginOf is the origin of an enrollment's notifications: one for each flow and month of
// enrolling. It is a UUIDv7 of the month's first instant, so that an enrollment's messages
// are in the partition of the month in which it began.
func OriginOf(flow, enrollment uuid.UUID) uuid.UUID {
	sec, nsec := enrollment.Time().UnixTime()
	t := time.Unix(sec, nsec).UTC()
	month := time.Date(t.Year(), t.Month(), 1, 0, 0, 0, 0, time.UTC).UnixMilli()
	id := lemma.Key("flow origin/1", string(flow[:]))
	for i := range 6 {
		id[i] = byte(month >> (40 - 8*i))
	}
	id[6] = id[6]&0x0f | 0x70
	id[8] = id[8]&0x3f | 0x80
	return id
}

// NodeKey is the key of a node's act for an enrollment: with the origin it is the name of
// a notification, alone that of a webhook's message.
func NodeKey(enrollment uuid.UUID, node string) uuid.UUID {
	return lemma.Key("flow node/1", string(enrollment[:]), node)
}

// MessageKey is the key of one of a node's notifications for an enrollment, from 0. There is one for
// each address of the profile.
func MessageKey(enrollment uuid.UUID, node string, number int) uuid.UUID {
	if number == 0 {
		return NodeKey(enrollment, node)
	}
	return lemma.Key("flow message/1", string(enrollment[:]), node, strconv.Itoa(number))
}

// ContentID is the id of a node's content, written once for a version.
func ContentID(flow uuid.UUID, version int, node string) uuid.UUID {
	return lemma.Key("flow content/1", string(flow[:]), strconv.Itoa(version), node)
}

// erasedPattern matches the keys that ErasedKey makes.
var erasedPattern = regexp.MustCompile(`^erased:[0-9a-f]{16}$`)

// ErasedKey is the key that replaces an erased profile's. It maps to itself, so that
// an erased key can be erased again.
func ErasedKey(profileKey string) string {
	if erasedPattern.MatchString(profileKey) {
		return profileKey
	}
	sum := lemma.Key("erased/1", profileKey)
	return "erased:" + hex.EncodeToString(sum[:8])
}

// PgUUID is an id in the type that pgx sends without a conversion.
func PgUUID(id uuid.UUID) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: true} }

// VersionNumber is a version's number in the column's type; one that does not fit becomes
// a number that no version has.
func VersionNumber(n int) int32 {
	if n != int(int32(n)) {
		return -1
	}
	return int32(n)
}

// Package lemma holds the few words that every room of the house says: ids,
// keys, addresses, pages and errors. It knows nobody.
//
// A five-minute walk. Someone knocks at api. A campaign (campaigns; later a
// flow) decides that a person should hear something; audience is its window
// onto the customer's own database, message its writing desk. The intent
// becomes one row in notifications, the ledger in the hallway, and the same
// transaction rings a doorbell: a River job that carries nothing but a batch's
// id. sender answers the bell, takes a lease on the batch, opens a window of
// rows, hands their letters to a carrier (sender/smtp) and appends what came
// of each call. What is learnt later is kept in events, which the reaper reads
// before it decides about a row whose worker died. migrations are the
// foundations, cmd is the switchboard, pgtest the workshop.
//
// Three sentences to remember. The row is the truth, the job is only a
// doorbell: it may ring twice, or never. Intents and outcomes are appended,
// and the batch alone is updated. Nothing is sent a third time, because a
// third attempt cannot be written down.
package lemma

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"strings"

	"github.com/google/uuid"
)

// Channel is how a message travels.
type Channel string

// Email is the channel that Lemma sends over today.
const Email Channel = "email"

// ID prefixes. They exist in the API alone; tables hold bare UUIDs.
const (
	PrefixWorkspace    = "wsp"
	PrefixKey          = "key"
	PrefixDataSource   = "ds"
	PrefixAudience     = "aud"
	PrefixTemplate     = "tpl"
	PrefixProvider     = "prv"
	PrefixCampaign     = "cmp"
	PrefixNotification = "ntf"
	PrefixFlow         = "flw"
	PrefixEnrollment   = "enr"
	PrefixEvent        = "evt"
	PrefixEndpoint     = "whe"
)

// crockford is Crockford's base32 in lower case: no i, l, o, u to misread.
var crockford = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

// NewID makes a UUIDv7 (RFC 9562): ids made later sort later, which keeps
// indexes appending and lets partitions be cut by time.
func NewID() uuid.UUID {
	return uuid.Must(uuid.NewV7())
}

// FormatID writes an id as the API shows it: prefix, underscore, 26 characters.
func FormatID(prefix string, id uuid.UUID) string {
	return prefix + "_" + crockford.EncodeToString(id[:])
}

// ParseID reads what FormatID wrote. Anything else is not the id of anything,
// so it answers false and the caller says NotFound.
func ParseID(prefix, s string) (uuid.UUID, bool) {
	raw, ok := decodeID(prefix, s, 16)
	if !ok {
		return uuid.Nil, false
	}
	return uuid.UUID(raw), true
}

// FormatNotificationID writes the public id of a notification: its origin and
// its key, so that looking it up needs no index but the primary key.
func FormatNotificationID(origin, key uuid.UUID) string {
	return PrefixNotification + "_" + crockford.EncodeToString(append(origin[:], key[:]...))
}

// ParseNotificationID reads what FormatNotificationID wrote.
func ParseNotificationID(s string) (origin, key uuid.UUID, ok bool) {
	raw, ok := decodeID(PrefixNotification, s, 32)
	if !ok {
		return uuid.Nil, uuid.Nil, false
	}
	return uuid.UUID(raw[:16]), uuid.UUID(raw[16:]), true
}

// decodeID accepts exactly one spelling of each id: base32 leaves spare bits
// in the last character, and an id with those set would be a second name.
func decodeID(prefix, s string, size int) ([]byte, bool) {
	rest, ok := strings.CutPrefix(s, prefix+"_")
	if !ok {
		return nil, false
	}
	raw, err := crockford.DecodeString(rest)
	if err != nil || len(raw) != size || crockford.EncodeToString(raw) != rest {
		return nil, false
	}
	return raw, true
}

// Key is a uniqueness key: the first 16 bytes of SHA-256 over a canonical
// form. domain names what is keyed and the version of its canonical form
// ("campaign/1"); every part is preceded by its length, so that ("ab", "c")
// and ("a", "bc") differ. 16 bytes because a collision would silently drop a
// person, and SHA-256 because a cheaper hash could be aimed at one.
func Key(domain string, parts ...string) uuid.UUID {
	var scratch [256]byte
	form := appendPart(scratch[:0], domain)
	for _, p := range parts {
		form = appendPart(form, p)
	}
	sum := sha256.Sum256(form)
	return uuid.UUID(sum[:16])
}

func appendPart(form []byte, part string) []byte {
	form = binary.BigEndian.AppendUint32(form, uint32(len(part)))
	return append(form, part...)
}

// Page asks for one page of a list, newest first.
type Page struct {
	Limit  int    // rows wanted, 1 to 200
	Cursor string // where the page before ended; empty for the first
}

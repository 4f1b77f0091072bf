package events

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"
	"unicode/utf8"
)

// Report is what a carrier reports about one message by webhook, before it is known
// which notification it is about.
type Report struct {
	ID           string // the carrier's id of the report; empty when it has none
	Notification string // the public id (ntf_...) that was sent with the message; empty when the report has none
	Attempt      int    // of the call; 0 when the report does not have it
	CarrierID    string // the carrier's id of the message
	Address      string // the recipient, if the notification is not found or none is named, such as for STOP; canonical when it is stored
	Type         Type
	Code         int    // the reply code of the recipient's server; 0 for none
	Reason       string // the carrier's code for the cause, such as "mailbox_full"
	Detail       string // the carrier's text, without the address
	OccurredAt   time.Time
}

// Type is what a report is about. Proves is what it proves about the call.
type Type string

// The types of reports. Each but Deferred and Rejected proves that the
// carrier accepted the message.
const (
	TypeAccepted     Type = "accepted"     // the carrier has the message
	TypeRejected     Type = "rejected"     // it does not have it and never will accept it
	TypeDeferred     Type = "deferred"     // it did not accept it this time
	TypeDelayed      Type = "delayed"      // accepted, and not yet delivered
	TypeDelivered    Type = "delivered"    // the recipient's server or device has it
	TypeBounced      Type = "bounced"      // it cannot be delivered, now or later: the address does not work
	TypeSoftBounced  Type = "soft_bounced" // it was not delivered, for a reason that may pass: mailbox full
	TypeUndelivered  Type = "undelivered"  // it was not delivered, and the cause is not known to be the address
	TypeComplained   Type = "complained"   // the recipient reported it as spam
	TypeOpened       Type = "opened"
	TypeClicked      Type = "clicked"
	TypeUnsubscribed Type = "unsubscribed" // the recipient unsubscribed at the carrier, such as STOP
)

// Types are all types.
var Types = []Type{TypeAccepted, TypeRejected, TypeDeferred, TypeDelayed, TypeDelivered, TypeBounced, TypeSoftBounced, TypeUndelivered,
	TypeComplained, TypeOpened, TypeClicked, TypeUnsubscribed}

// Proves returns what a report of this type proves about the call.
func (t Type) Proves() Kind {
	switch t {
	case TypeRejected:
		return Rejected
	case TypeDeferred:
		return Deferred
	}
	return Accepted
}

// Prompt reports whether a carrier sends reports of this type as a consequence of the
// call alone. The time of the others depends on the recipient.
func (t Type) Prompt() bool {
	return t != TypeOpened && t != TypeClicked && t != TypeComplained && t != TypeUnsubscribed
}

// Suppresses reports whether a report of this type adds a suppression by itself.
func (t Type) Suppresses() bool {
	return t == TypeBounced || t == TypeComplained || t == TypeUnsubscribed
}

// longestID is the longest id of an event that is stored as it is. A longer one is
// stored as its hash, so that it still identifies the event and fits into an index.
const longestID = 200

func storedID(id string) string { return orUnknown(ShortID(id)) }

// ShortID is an id of a carrier as it is stored: the hash of one that is long.
func ShortID(id string) string {
	id = strings.ToValidUTF8(strings.ReplaceAll(id, "\x00", "\uFFFD"), "\uFFFD")
	if len(id) > longestID || id == unknownID {
		sum := sha256.Sum256([]byte(id))
		return "sha256:" + hex.EncodeToString(sum[:])
	}
	return id
}

// longestText is the most that is stored of each text of a report, in bytes.
const longestText = 200

// stored is a text as Postgres can store it, and not longer than longestText.
func stored(text string) string {
	text = strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", ""), "\uFFFD")
	if len(text) <= longestText {
		return text
	}
	n := longestText
	for !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

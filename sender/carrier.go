package sender

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// Outcome is what one call to a carrier proved. The set is closed; each
// carrier documents which of its answers proves what.
type Outcome string

const (
	// Accepted: the carrier has taken the message and answers for it.
	Accepted Outcome = "accepted"
	// Rejected: the carrier has surely not taken it and never will.
	Rejected Outcome = "rejected"
	// NotAccepted: surely not taken this time; the row is called again later and no attempt is spent.
	NotAccepted Outcome = "not_accepted"
	// Unknown: the message was on its way and no answer settles what became
	// of it. Nothing is written; the reaper alone decides.
	Unknown Outcome = "unknown"
	// NotCalled: no byte of the message left, because the time for calls was over, or
	// with Provider because the provider failed a moment ago.
	NotCalled Outcome = "not_called"
)

// Message is one letter, ready but for the carrier's own form.
type Message struct {
	Notification string // public id (ntf_...), travels with the letter so that a ghost can be matched
	Attempt      int    // 1 or 2; never part of the letter's bytes

	To        string // bare address
	FromName  string
	FromEmail string
	ReplyTo   string
	Headers   [][2]string // extra headers, sorted by name, free of CR, LF and NUL
	Subject   string
	HTML      string
	Text      string

	// Date and Seed fix everything that a carrier would otherwise draw from a
	// clock or at random (date, boundary): two attempts say the same bytes.
	Date time.Time
	Seed uuid.UUID

	// StartBy is when it is too late to begin: then it is NotCalled, and ctx
	// still leaves the time for one that has begun. Zero is no bound; later
	// messages of a call have no earlier one.
	StartBy time.Time
}

// Receipt is what the carrier said about one message.
type Receipt struct {
	Outcome   Outcome
	Provider  bool   // it speaks of the account or the server, not of this recipient
	Definite  bool   // with Provider: the account or the sender is refused, and waiting mends nothing
	Code      int    // the carrier's reply code; 0 when it gave none
	Reason    string // a word from a closed list of the carrier's, such as "recipient_rejected"
	CarrierID string // what the carrier calls the message
	Detail    string // the carrier's own words, at most 200 bytes, without the address
	At        time.Time
}

// Carrier sends over one provider account. Send makes exactly one wire request
// for each message, in order, and answers with one receipt for each: no
// retries, no redirects, no replay. When ctx ends, or its deadline or a message's
// StartBy has passed by the clock, it starts no further message (NotCalled);
// when ctx ends it calls the one on its way Unknown unless the answer is
// already there. It never answers with an error: whatever happened, each
// message's receipt says what is known. It is safe for concurrent use.
type Carrier interface {
	Send(ctx context.Context, letters []Message) []Receipt
	// Close ends pooled connections. Send is not called after it.
	Close()
}

// Capabilities are what a kind of carrier can prove; the API shows the bound
// that follows from them.
type Capabilities struct {
	Events         bool `json:"events"`          // it reports acceptance later by webhook
	IdempotencyKey bool `json:"idempotency_key"` // two requests under one key are one message
	Collapse       bool `json:"collapse"`        // two copies become one on the device
	Lookup         bool `json:"lookup"`          // it can be asked whether it took a message
}

// Account is a provider as a carrier needs it, secrets opened.
type Account struct {
	WorkspaceID, ProviderID uuid.UUID
	Kind                    string
	Config                  []byte        // JSON, by the kind's own schema
	Secrets                 []byte        // JSON, by the kind's own schema; nil when it has none
	Version                 int           // a carrier is opened anew when it changes
	CallTimeout             time.Duration // no round trip of a call may last longer; 0: as the config says
}

// Kind is a kind of carrier that this program can speak to.
type Kind struct {
	Name         string
	Capabilities Capabilities
	// Open makes a carrier for an account; it does not connect yet.
	Open func(Account) (Carrier, error)
}

package sender

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/sender/redact"
	"lemma/sender/trace"
)

// Outcome is what one call to a carrier proves. The set is closed; each carrier
// documents which of its answers proves what.
type Outcome string

const (
	// Accepted means that the carrier accepted the message.
	Accepted Outcome = "accepted"
	// Rejected means that the carrier did not accept the message and never will.
	Rejected Outcome = "rejected"
	// NotAccepted means that the carrier did not accept the message this time. It is called again and no attempt is spent.
	NotAccepted Outcome = "not_accepted"
	// Unknown means that the message was being transferred and no answer proves the outcome.
	// Nothing is written; only the reaper decides.
	Unknown Outcome = "unknown"
	// NotCalled means that no byte of the message was sent, because the time for calls was over,
	// or with Provider because the provider has just failed.
	NotCalled Outcome = "not_called"
)

// Message is one message, complete but for the carrier's format.
type Message struct {
	Notification string // public id (ntf_...), sent with the message, so that later events can be matched
	Attempt      int    // 1 or 2; never part of what the recipient gets

	To        string // email: bare address; sms: E.164; push: the token of a device
	FromName  string // with FromEmail, ReplyTo, Headers and HTML: email only
	FromEmail string
	ReplyTo   string
	Headers   [][2]string // extra headers, sorted by name, free of CR, LF and NUL
	Subject   string      // of an email; the title of a push
	HTML      string
	Text      string            // the plain text of an email, the text of an SMS, the body of a push
	Link      string            // push: what a tap opens
	Data      map[string]string // push: further members for the app

	// Date and Seed replace the clock and random numbers (date, boundary): two attempts
	// send the same bytes.
	Date time.Time
	Seed uuid.UUID

	// StartBy is the latest start of the call: later it is NotCalled, while ctx leaves
	// the time for a call that has begun. Zero is no bound; later messages of a call
	// have no earlier one.
	StartBy time.Time
}

// Receipt is what is known of one message after Send.
type Receipt struct {
	Outcome   Outcome
	Provider  bool   // the failure is of the account or the server, not of this recipient
	Definite  bool   // with Provider: the account or the sender is refused, and waiting does not help
	Own       bool   // with Rejected: it says nothing about other messages, such as the answer of a server that the recipient chose
	Code      int    // the carrier's reply code; 0 for none
	Reason    string // a code of the carrier's closed list, such as "recipient_rejected"
	CarrierID string // the carrier's id of the message
	Detail    string // the carrier's text, as Detail makes it
	At        time.Time

	// RetryAfter is how long the carrier asks to wait before a call that it did not
	// accept is made again; 0 if it has no time.
	RetryAfter time.Duration
}

// ReasonUnsubscribed is the reason of a rejection because the recipient has unsubscribed at the
// carrier. The address is then suppressed.
const ReasonUnsubscribed = "recipient_unsubscribed"

// ReasonUnregistered is the reason of a rejection because no app or browser has the push
// token any more. The token is then suppressed.
const ReasonUnregistered = "token_unregistered"

// ReasonUnknownRecipient is the reason of a rejection because the address does not exist, or takes no
// messages any more. It is then suppressed, as after a report of a bounce.
const ReasonUnknownRecipient = "recipient_unknown"

// MostRetryAfter is the longest wait that a carrier can ask for.
const MostRetryAfter = 15 * time.Minute

// wait is the RetryAfter that is respected.
func (r Receipt) wait() time.Duration { return max(0, min(r.RetryAfter, MostRetryAfter)) }

// How many connections of all carriers of a process may be idle at a time, and how many of one
// workspace. A provider has up to 256 connections, and a workspace many providers.
const (
	MostIdle            = 256
	MostIdleOfWorkspace = 64
)

// Carrier sends over one provider account. It is safe for concurrent use.
type Carrier interface {
	// Send makes exactly one wire request for each message and returns a receipt for each: no retries, no redirects,
	// no replay. Messages start in order, one or several at a time. After the end of ctx, its deadline or a message's
	// StartBy none is started (NotCalled); at the end of ctx the current ones are Unknown unless their answers are there.
	// Failures are receipts.
	Send(ctx context.Context, messages []Message) []Receipt
	// Close ends pooled connections. Send is not called after it.
	Close()
}

// Capabilities are what a kind of carrier can prove. The bound in the API follows from
// them.
type Capabilities struct {
	Events         bool `json:"events"`          // it reports acceptance later by webhook
	IdempotencyKey bool `json:"idempotency_key"` // two requests under one key are one message
	Collapse       bool `json:"collapse"`        // a device shows a second delivery in place of the first, while that is shown
	Lookup         bool `json:"lookup"`          // it can be queried whether it accepted a message
}

// Account is a provider with its secrets decrypted.
type Account struct {
	WorkspaceID, ProviderID uuid.UUID
	Kind                    string
	Channel                 lemma.Channel   // of the provider's messages; empty: email
	Config                  []byte          // JSON, by the kind's own schema
	Secrets                 []byte          // JSON, by the kind's own schema; nil for none
	Redact                  *redact.Secrets // removes them from texts of the server, before these are logged or become a detail; nil: none
	Version                 int             // a new carrier is opened when it changes
	CallTimeout             time.Duration   // the longest round trip of a call; 0: as configured
	Trace                   *trace.Trace    // records the conversation of a test; nil: none
}

// Kind is a kind of carrier that this program supports. Without Check every account
// can be opened, without Moves every change keeps the secrets.
type Kind struct {
	Name         string
	Channels     []lemma.Channel // what it carries; the first is the default. None: email
	Capabilities Capabilities
	// Open makes a carrier for an account, without connecting.
	Open func(Account) (Carrier, error)
	// Receiver makes the reader of an account's webhooks, without connecting. Nil: the
	// kind has none. ErrNoReceiver: the account is not configured for them.
	Receiver func(Account) (Receiver, error)
	// Check returns one *lemma.Error with all faulty fields of an account.
	Check func(config, secrets json.RawMessage) error
	// Moves returns the changed members that decide where the secrets are sent.
	Moves func(before, after, secrets json.RawMessage) []string
	// Warnings are sentences about what is insecure or missing in a config that Check accepts.
	Warnings func(config json.RawMessage) []string
}

// Carried are the channels of a kind.
func (k Kind) Carried() []lemma.Channel {
	if len(k.Channels) == 0 {
		return []lemma.Channel{lemma.Email}
	}
	return k.Channels
}

// Carries reports whether a kind carries messages of a channel.
func (k Kind) Carries(channel lemma.Channel) bool { return slices.Contains(k.Carried(), channel) }

// Package lemma holds what all packages of Lemma share: ids, uniqueness keys,
// names, pages, errors and time zones. It imports none of them.
//
// # Concepts
//
//   - A profile is a person in a customer's own database.
//   - A data source is a connection to that database.
//   - An audience is a SQL query on a data source that returns profiles.
//   - A campaign sends one message to every profile of an audience.
//   - A flow is a graph of nodes. An event or an audience enrolls profiles in it, and
//     each enrollment moves from node to node.
//   - An event is what a profile did. A provider event is what a carrier reported. An
//     outgoing event is what Lemma reports to a customer's systems, and an event message
//     is the webhook message with it to one endpoint.
//   - A template is rendered into a message for each profile.
//   - A provider is an account at a carrier, such as an SMTP server.
//   - A notification is the decision that a profile gets a message.
//   - A batch is some hundreds of notifications that a worker claims together.
//   - The origin of a notification is what decided on it: a campaign, or a flow in one
//     month.
//   - An attempt is the outcome of sending one notification: accepted, rejected,
//     refused, unknown or skipped. A notification has at most two attempts.
//
// # How a message is sent
//
//  1. A campaign or a flow decides. In one transaction it inserts notifications and
//     their batches, and enqueues a River job for each batch.
//  2. A worker claims the batch: it acquires a lease on it, which expires.
//  3. It opens a window: it commits which notifications it is about to send.
//  4. It sends the messages of the window to a carrier.
//  5. It appends the outcomes and closes the window.
//
// When a worker is killed between steps 3 and 5, the outcome of the window is unknown.
// The reaper finds the expired lease. It reads what the carrier has reported, and
// then decides for each notification whether it may be sent again.
//
// Three rules hold everywhere. The row decides, and a job is only a hint: it may run
// twice or never. Notifications and attempts are only appended, except that an erasure
// removes a profile from notifications: what changes is the state of batches and
// enrollments. The schema rejects a third attempt.
//
// # Packages
//
// Decisions:
//
//	audience       data sources and audiences: reads the customer's database, which
//	               audience/wire connects to
//	message        templates: renders Liquid
//	campaigns      drafts, schedules and fan-outs
//	flows          flows, events, enrollments; flows/graph has definitions
//	direct         one message to one recipient by one request, and its key
//	abtest         assigns variants, and compares them
//	notifications  notifications, batches, statuses, counts
//
// Delivery:
//
//	sender         claims batches, sends them, reaps expired leases
//	sender/smtp    the SMTP carrier
//	sender/redact  the secrets of an account, removed from texts of its server
//	sender/trace   the conversation in the test of a provider, without secrets
//	sender/ses     the Amazon SES carrier, and its events by Amazon SNS (sender/ses/sns)
//	sender/fcm     the Firebase Cloud Messaging carrier
//	sender/twilio  the Twilio carrier, and its status callbacks
//	sender/esp     events of Postmark, Mailgun and SendGrid
//	sender/dsn     mails about bounces and complaints
//	sender/gateway the carrier to a customer's own HTTP service
//	sender/apns    the APNs carrier
//	sender/webpush the carrier to browsers: Web Push
//	sender/es256   JSON Web Tokens that all processes sign alike
//	sender/wire    HTTP requests of carriers: one for each call
//	sender/mime    messages as emails
//	sender/form    the settings of a provider's account
//	sender/report  ids, codes and causes in provider events
//	providers      accounts at carriers and their rate limits
//	suppression    addresses that are not sent to, and topics
//	unsubscribe    links to unsubscribe, and the page behind them
//	tracking       opens and clicks: the pixel and the links of messages
//	links          tokens in the links of messages
//	events         provider events: what carriers report
//	hooks          webhooks of carriers: receives and stores them
//	deliveries     applies their effects: states, counts, suppressions
//	lmtp           receives mails about bounces from the operator's mail server
//	webhooks       webhook messages to the customer's systems, through an outbox
//	eventsout      records outgoing events, for the customer's systems
//
// Access and infrastructure:
//
//	api            the HTTP API
//	client         the Go client for it, and its JSON types
//	audit          records each change with its actor
//	exports        rows of a workspace in files
//	blobs          files in a folder or an S3 store
//	archive        copies of old months, before they are dropped
//	page           pages of lists: cursors, orders, filters
//	pgerr          errors of Postgres as errors for callers
//	lifecycle      which status allows which verb
//	workspaces     tenants and their API keys
//	settings       the settings that concern all processes, and the public URL
//	secrets        encryption of stored secrets
//	signing        signatures of requests (Standard Webhooks)
//	mail           email addresses and envelopes
//	address        which addresses can be sent to, and when two are one address
//	dial           connections to addresses that customers enter
//	fence          leases: their renewal, and transactions that end with them
//	loop           work that is repeated
//	clock          the time of the database, without a statement for each reading
//	slots          limits on work that runs at the same time
//	cache          values that can be made again, within a number of bytes
//	migrations     the schema
//	retention      old months are dropped, coming months created
//	server         one process: wires the packages, serves and works
//	cmd/lemma      settings and commands
//
// Development: dev/... has the demo, the benchmarks and their servers, pgtest has
// databases for tests, chaos has tests with killed processes, and specs has the
// TLA+ models.
package lemma

import (
	"bytes"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"strings"
	"time"

	"github.com/google/uuid"
)

// MaxConversion is the longest time from a message to an event that it converts to.
const MaxConversion = 90 * 24 * time.Hour

// MaxEventName is how many characters the name of an event has at most.
const MaxEventName = 100

// Channel is the medium of a message.
type Channel string

// The channels.
const (
	Email Channel = "email"
	SMS   Channel = "sms"
	Push  Channel = "push"
)

// ID prefixes. Only the API has them; tables have plain UUIDs.
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
	PrefixEventOut     = "evo"
	PrefixSuppression  = "sup"
	PrefixTopic        = "top"
	PrefixIteration    = "itr"
	PrefixLinkKey      = "lnk"
	PrefixExport       = "exp"
	PrefixAudit        = "adt"
)

// crockford is Crockford's base32 in lower case, without i, l, o and u.
var crockford = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

// NewID returns a UUIDv7 (RFC 9562). Later ids sort later: indexes grow at their
// end, and tables can be partitioned by time.
func NewID() uuid.UUID {
	return uuid.Must(uuid.NewV7())
}

// NewIDSince returns a new id whose time is not before that of another one, which a process
// with a clock that is ahead may have made.
func NewIDSince(earlier uuid.UUID) uuid.UUID {
	const time = 6 // bytes: milliseconds since 1970
	id := NewID()
	if bytes.Compare(id[:time], earlier[:time]) < 0 {
		copy(id[:time], earlier[:time])
	}
	return id
}

// FormatID formats an id for the API: prefix, underscore, 26 characters.
func FormatID(prefix string, id uuid.UUID) string {
	return string(AppendID(make([]byte, 0, 32), prefix, id))
}

// AppendID appends FormatID.
func AppendID(to []byte, prefix string, id uuid.UUID) []byte {
	return crockford.AppendEncode(append(append(to, prefix...), '_'), id[:])
}

// ParseID parses an id from FormatID. It returns false for any other text, which is
// the id of nothing: callers return NotFound.
func ParseID(prefix, s string) (uuid.UUID, bool) {
	raw, ok := decodeID(prefix, s, 16)
	if !ok {
		return uuid.Nil, false
	}
	return uuid.UUID(raw), true
}

// FormatNotificationID formats the id of a notification for the API. It contains
// origin and key, so the primary key finds the notification.
func FormatNotificationID(origin, key uuid.UUID) string {
	var id [32]byte
	copy(id[:], origin[:])
	copy(id[16:], key[:])
	return string(crockford.AppendEncode(append(make([]byte, 0, 64), PrefixNotification+"_"...), id[:]))
}

// AppendNotificationIDs returns what appends FormatNotificationID for keys of one origin. The
// characters that they have in common are made once: those of 15 bytes, which are 24.
func AppendNotificationIDs(origin uuid.UUID) func(to []byte, key uuid.UUID) []byte {
	common := crockford.AppendEncode([]byte(PrefixNotification+"_"), origin[:15])
	last := origin[15]
	return func(to []byte, key uuid.UUID) []byte {
		var rest [17]byte
		rest[0] = last
		copy(rest[1:], key[:])
		return crockford.AppendEncode(append(to, common...), rest[:])
	}
}

// ParseNotificationID parses an id from FormatNotificationID.
func ParseNotificationID(s string) (origin, key uuid.UUID, ok bool) {
	raw, ok := decodeID(PrefixNotification, s, 32)
	if !ok {
		return uuid.Nil, uuid.Nil, false
	}
	return uuid.UUID(raw[:16]), uuid.UUID(raw[16:]), true
}

// IsTestID reports that an id is that of the message of a provider test, which is no
// notification: it names no origin.
func IsTestID(s string) bool {
	_, ok := ParseID(PrefixNotification, s)
	return ok
}

// decodeID accepts one spelling of each id: base32 has spare bits in the last
// character, which could be set.
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

// Key returns a uniqueness key: the first 16 bytes of SHA-256 over a canonical
// form. domain is what the key is for and the version of the canonical form, such
// as "campaign/1". Each part follows its length, so ("ab", "c") and ("a", "bc")
// differ. A collision would silently drop a recipient: shorter keys would collide
// by chance, and collisions of a weaker hash could be constructed.
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

// Set assigns a value that was given: nil leaves the field as it is.
func Set[T any](field *T, value *T) {
	if value != nil {
		*field = *value
	}
}

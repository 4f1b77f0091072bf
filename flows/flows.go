// Package flows decides what happens to a person next. Its promises: a trigger
// enrolls a profile once however often it is told, and every trigger that
// enrolls nobody is kept with its reason; a node acts at most once for an
// enrollment, whoever crashes or races; a published version never changes, and
// publishing another moves nobody who was not asked to move; nobody is left on
// a node that does not exist; and what waits is woken when the database's clock
// says so, not before and once.
//
// What a flow says is read by graph; people are read live through audience;
// what they are to hear is written into notifications, and what systems are to
// hear into webhooks, in the transaction that moves the enrollment.
package flows

import (
	"encoding/json"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/audience"
	"lemma/message"
	"lemma/notifications"
	"lemma/providers"
	"lemma/webhooks"
)

// Status is where a flow stands. state.go has the only table of what may follow what.
type Status string

const (
	Draft    Status = "draft"    // nothing was published yet
	Live     Status = "live"     // triggers enroll, enrollments move
	Paused   Status = "paused"   // triggers are refused as paused; nobody moves, what falls due waits
	Draining Status = "draining" // triggers are refused as not_live; who is on the way goes on
	Archived Status = "archived" // nobody is on the way
)

// Flow is a journey. What it says is in its versions.
type Flow struct {
	ID           uuid.UUID
	WorkspaceID  uuid.UUID
	Name         string
	Status       Status
	StatusReason string // why Lemma paused it; empty otherwise
	StatusDetail string
	LiveVersion  *int
	Metadata     map[string]string
	HeldFrom     *time.Time // the last pause
	HeldUntil    *time.Time
	SpreadUntil  *time.Time // what fell due during the pause is released until then
	Version      int        // ETag
	CreatedAt    time.Time
	UpdatedAt    time.Time
	Allowed      []string // the verbs that the status allows
}

// NewFlow is what a flow is made from.
type NewFlow struct {
	ID         uuid.UUID // made by the caller, so that a repeated request makes it once
	Name       string
	Metadata   map[string]string
	Definition json.RawMessage // becomes version 1, a draft; nil: none yet
}

// Patch changes a flow; nil leaves a field as it is.
type Patch struct {
	Name     *string
	Metadata map[string]string
}

// Version is what a flow says, or is going to say. Published, it never changes.
type Version struct {
	FlowID      uuid.UUID
	Version     int
	Status      string // draft, published, live (the published one that enrolls now)
	Definition  json.RawMessage
	Revision    int // ETag
	CreatedAt   time.Time
	UpdatedAt   time.Time
	PublishedAt *time.Time
}

// Asker is who asks for a verb, and by which request; nil is Lemma itself.
type Asker struct {
	APIKeyID uuid.UUID
	Request  uuid.UUID // repeated under the same one, a verb is done once and answers what is now; zero: each time is another
}

// InFlight says what becomes of those who are on their way in other versions.
type InFlight struct {
	Mode string             // stay, move or exit
	Map  map[string]*string // move: node of an old version -> node of the new one, nil: exit. Nodes that are in both map to themselves unless it says otherwise
}

// Plan is what publishing a version would do, found out without a side effect.
type Plan struct {
	Version  int
	Live     *int
	InFlight InFlight
	Nodes    []Standing // everybody who is on the way in other versions
	Stranded int64      // of these: who stands on a node that is gone and not mapped, or may still come to one; publishing with move is refused while there are any
	Timers   []TimerChange
	Changes  []Change
	Enrolls  *int64 // whom the first look at the audience would enroll; 0: no trigger goes by it, nil: it could not be found out
	Unknown  string // why not
	ETag     int    // the flow's, read before anything else was: Publish with it publishes what was looked at, or nothing
}

// Standing is how many stand where, and what would become of them.
type Standing struct {
	Version int
	Node    string
	Type    string
	Waiting int64 // not due yet
	Due     int64
	Fate    string // stays, moves, exits, stranded
	To      string // moves: the node
}

// TimerChange is a wait that publishing with move would change.
type TimerChange struct {
	Version int // where they wait
	Node    string
	To      string
	Waiting int64
	Change  string  // kept, shifted (a delay that got longer or shorter), restarted
	Seconds float64 // shifted: by how much
}

// Change is one difference between two definitions.
type Change struct {
	Pointer string
	Op      string // add, remove, replace
	From    json.RawMessage
	To      json.RawMessage
}

// LogLine is one thing that was done to a flow.
type LogLine struct {
	At       time.Time
	Action   string // published, rolled_back, paused, resumed, drained, archived
	Version  *int
	APIKeyID *uuid.UUID
	Detail   map[string]any
}

// Event is something that a profile did, as a customer's system tells it.
type Event struct {
	ID         string // the sender's own id: told twice, it counts once; may be empty
	Retry      string // names the request where there is no id: repeated, it counts once; never stored or shown
	ProfileKey string
	Name       string
	Properties json.RawMessage // an object; nil: none
	OccurredAt time.Time       // zero: now
}

// Recorded is what came of an event.
type Recorded struct {
	Key       uuid.UUID // of the event
	Duplicate bool      // it was known already, and did nothing
	Results   []Result  // one for each flow that it triggers
	Woken     int       // enrollments that waited for it
	Exited    int       // enrollments that it ended
	Err       error     // it is broken, and nothing of it was kept
}

// Result is what a trigger did in one flow.
type Result struct {
	FlowID       uuid.UUID
	Outcome      string // enrolled or refused
	Reason       string // refused: one of the reasons that the API lists
	Detail       string
	EnrollmentID *uuid.UUID // enrolled: the new one; refused: the one that stands in the way, if one does
}

// Enrolling asks for a direct enrollment.
type Enrolling struct {
	ProfileKey string
	ID         string          // dedupe key, as of an event; may be empty
	Retry      string          // as of an event
	Properties json.RawMessage // the trigger's
	OccurredAt time.Time       // zero: now
}

// Enrollment is one profile's way through one version of a flow.
type Enrollment struct {
	ID          uuid.UUID
	WorkspaceID uuid.UUID
	FlowID      uuid.UUID
	Version     int
	ProfileKey  string
	Status      string // active, waiting (active, and not due), completed, exited, refused
	ExitReason  string // goal, condition, manual, flow_archived, version_replaced, left_audience, no_profile, erased, or the reason of a refusal
	Node        string // where it stands or ended; empty before the first
	Step        int
	ResumeAt    *time.Time
	Awaits      string     // the event that it waits for
	Trouble     string     // what keeps it from going on, such as source_unavailable
	DueSince    *time.Time // since when it has been due in vain
	Failures    int
	Source      string // event, audience, direct
	EnrolledAt  time.Time
	EndedAt     *time.Time
}

// EnrollmentFilter narrows a list.
type EnrollmentFilter struct {
	FlowID     *uuid.UUID
	ProfileKey string
	Status     string // active covers waiting
	Node       string
	Version    int
	Trouble    string // a code; any: whatever it is
}

// Step is one thing that happened to an enrollment.
type Step struct {
	Step           int
	Version        int
	Node           string
	Event          string // one of stepEvents
	Data           map[string]any
	At             time.Time
	NotificationID string // sent, and skipped at a send: the notification

	// What became of what the step wrote, as of now.
	Notification *notifications.State // of NotificationID; nil as well when it is gone
	Message      *webhooks.Fate       // webhook: its message. The State is empty when it ended so long ago that it is gone
}

// What a step may say that happened. The last three are an end, and say what the
// enrollment's status became.
const (
	stepEnrolled  = "enrolled"     // step 0: how it came in
	stepChecked   = "checked"      // let in
	stepSent      = "sent"         // a send wrote its notification
	stepSkipped   = "skipped"      // a send wrote that it is not sent, or a node did not act
	stepResumed   = "resumed"      // a wait is over, or was none
	stepZone      = "zone_unknown" // a wait goes by another zone than the profile's, which is none
	stepTimedOut  = "timed_out"    // the awaited event did not come
	stepBranched  = "branched"
	stepSplit     = "split"
	stepWebhook   = "webhook"  // a webhook wrote its message
	stepAnswered  = "answered" // it was answered, or given up
	stepMoved     = "moved"    // to another version, or by hand
	stepCompleted = Completed
	stepExited    = Exited
	stepRefused   = statusRefused
)

// stepEvents are all of them.
var stepEvents = []string{stepEnrolled, stepChecked, stepSent, stepSkipped, stepResumed, stepZone, stepTimedOut, stepBranched, stepSplit, stepWebhook, stepAnswered,
	stepMoved, stepCompleted, stepExited, stepRefused}

// Rooms are whom flows work with.
type Rooms struct {
	Pool      *pgxpool.Pool
	Ledger    *notifications.Ledger
	Audiences *audience.Audiences
	Templates *message.Templates
	Providers *providers.Providers
	Webhooks  *webhooks.Webhooks
	Log       *slog.Logger
	Metrics   *Metrics
}

// Config are the sizes that the engine works by. Zero values are filled in by New.
type Config struct {
	Workers    int           // lots advanced at a time by one node; 4
	Lot        int           // enrollments per transaction; 1,000
	Poll       time.Duration // how often an idle node looks for what is due; 250 ms
	Lease      time.Duration // of a turn, a poll or a move; 60 s
	BackOff    time.Duration // before a source that failed is asked again, doubled each time; 5 s
	MaxBackOff time.Duration // 10 min
	Retention  time.Duration // of events and refusals; 30 days
	Gather     int           // single events that are recorded in one transaction, at most; 256
}

// Flows keeps flows and moves people through them.
type Flows struct {
	pool      *pgxpool.Pool
	ledger    *notifications.Ledger
	audiences *audience.Audiences
	templates *message.Templates
	accounts  *providers.Providers
	webhooks  *webhooks.Webhooks
	log       *slog.Logger
	metrics   *Metrics
	cfg       Config

	graphs   graphs             // compiled versions
	bulks    bulks              // bulks that are being recorded
	gather   gatherer           // single events on their way into one transaction
	sources  breakers           // data sources that fail
	polls    polls              // audiences that this node is reading
	idleLook atomic.Int64       // how long the last look for somebody who is due took in vain
	bell     *bell              // somebody has become due on this node
	hook     func(stage string) // what tests stop workers with; nil in production
}

// OriginOf is the origin of an enrollment's notifications: one for each flow and
// month of enrolling. It is made like a UUIDv7 of the month's first instant, so
// that a journey's messages lie in the partition of the month it began in.
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

// NodeKey is the key of what a node does for an enrollment: with the origin it
// names the notification, alone the webhook's message.
func NodeKey(enrollment uuid.UUID, node string) uuid.UUID {
	return lemma.Key("flow node/1", string(enrollment[:]), node)
}

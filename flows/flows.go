// Package flows stores flows and their versions, and advances their enrollments.
// It guarantees: a published version never changes; publishing moves enrollments of
// other versions only on request; no enrollment is left on a node that does not
// exist; a node acts at most once for an enrollment, whatever crashes or races; and
// a wait ends once, and not before its time by the database's clock.
//
// Package graph reads definitions. Package intake records triggers and enrolls.
// Package execution decides what enrollments do next, and this package writes it,
// with notifications and webhook messages, in the transaction that moves them.
// Package query reads counts, lists and explanations. Package enrollment has the
// rows, keys and locks that they share.
package flows

import (
	"encoding/json"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/audience"
	"lemma/flows/enrollment"
	"lemma/flows/execution"
	"lemma/flows/graph"
	"lemma/flows/intake"
	"lemma/message"
	"lemma/notifications"
	"lemma/providers"
	"lemma/slots"
	"lemma/suppression"
	"lemma/webhooks"
)

// Status is the status of a flow. state.go has the only table of transitions.
type Status string

// Statuses of a flow.
const (
	Draft    Status = "draft"    // no version was published yet
	Live     Status = "live"     // triggers enroll, enrollments move
	Paused   Status = "paused"   // triggers are refused as paused; no enrollment advances
	Draining Status = "draining" // triggers are refused as not_live; active enrollments continue
	Archived Status = "archived" // no enrollment is active
)

// Flow is a flow without its definitions, which are in its versions.
type Flow struct {
	ID           uuid.UUID
	WorkspaceID  uuid.UUID
	Name         string
	Status       Status
	StatusReason string // why Lemma paused it; empty otherwise
	StatusDetail string
	LiveVersion  *int
	Metadata     map[string]string
	PausedAt     *time.Time // the last pause
	ResumedAt    *time.Time
	CatchUpUntil *time.Time // enrollments that became due in the pause are released until then
	Version      int        // ETag
	CreatedAt    time.Time
	UpdatedAt    time.Time
	Allowed      []string // the verbs that the status allows
}

// NewFlow is a flow to create.
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

// Version is a definition of a flow. It never changes once it is published.
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

// Actor is the API key and the request that call a verb; nil is Lemma itself.
type Actor struct {
	APIKeyID uuid.UUID
	Request  uuid.UUID // a repetition with the same id does nothing and returns the current state; zero: every call is new
}

// InFlight decides what happens to active enrollments of other versions.
type InFlight struct {
	Mode string // stay, move or exit
	// Move: node of an old version -> node of the new one, nil: exit. Nodes that both
	// versions have map to themselves unless Map names them.
	Map map[string]*string
}

// Plan is the effect of publishing a version, computed without publishing it.
type Plan struct {
	Version  int
	Live     *int
	InFlight InFlight
	Nodes    []PlannedNode // active enrollments in other versions: 1,000 at most, stranded and larger ones first
	// Of these: on a node that is gone and not mapped, or able to reach one. Publishing
	// with move is refused if there are any.
	Stranded int64
	Timers   []TimerChange // 1,000 at most, those of most enrollments

	NodesLeftOut, TimersLeftOut int

	Changes []graph.Difference
	Enrolls *int64 // profiles that the first poll of the audience would enroll; 0: no trigger on the audience, nil: unknown
	Unknown string // why not
	ETag    Tag    // the flow's is read first: a Publish with it publishes what was planned, or fails
}

// PlannedNode counts the enrollments on a node, and the action on them.
type PlannedNode struct {
	Version int
	Node    string
	Type    string
	Waiting int64 // not due yet
	Due     int64
	Action  string // stay, move, exit, stranded
	To      string // move: the target node
}

// TimerChange is a wait that publishing with move would change.
type TimerChange struct {
	Version int // of the waiting enrollments
	Node    string
	To      string
	Waiting int64
	Change  string  // kept, shifted (a delay that got longer or shorter), restarted
	Seconds float64 // shifted: by how much
}

// Deps are what Flows uses.
type Deps struct {
	Pool      *pgxpool.Pool
	Ledger    *notifications.Ledger
	Audiences *audience.Audiences
	Templates *message.Templates
	Providers *providers.Providers
	Webhooks  *webhooks.Webhooks
	Log       *slog.Logger
	Metrics   *enrollment.Metrics
	Hook      *enrollment.Hook // what tests stop workers with; nil in production
}

// Config has the limits and delays. New fills in zero values.
type Config struct {
	Workers    int           // chunks advanced at a time by one process; 4
	Chunk      int           // enrollments per transaction; 1,000
	Poll       time.Duration // how often an idle node polls for due enrollments; 250 ms
	Lease      time.Duration // of a shard, a poll or a move; 60 s
	BackOff    time.Duration // before a source that failed is queried again, doubled each time; 5 s
	MaxBackOff time.Duration // 10 min

	ConditionTime time.Duration // evaluating one chunk of enrollments; the rest is blocked; 2 s
	EventTime     time.Duration // searching and counting the events of one chunk of enrollments; the rest is left for the next; 250 ms
	ChunkBytes    int           // of each kind of facts of one chunk, and of what it writes; the rest is left for the next; 8 MiB
	Retention     time.Duration // of events and refusals; 30 days
	Gather        int           // single events that are recorded in one transaction, at most; 256

	PublicURL func() string // under which links lead; without one, a send node whose recipients need them is a fault; nil: never
}

// Flows stores flows and advances their enrollments.
type Flows struct {
	Intake    *intake.Intake       // records triggers and enrolls
	Execution *execution.Evaluator // evaluates nodes

	pool      *pgxpool.Pool
	ledger    *notifications.Ledger
	audiences *audience.Audiences
	templates *message.Templates
	accounts  *providers.Providers
	webhooks  *webhooks.Webhooks
	topics    *suppression.Suppressions
	log       *slog.Logger
	metrics   *enrollment.Metrics
	cfg       Config

	forgetPage int           // rows; forgetPage
	moveTime   time.Duration // moveTime
	routeTime  time.Duration // routeTime
	tryTime    time.Duration // tryTime
	retrySlots *slots.Slots
	assumed    atomic.Bool // see assumeWaiting
	lockWaits  lockWaits
	eraseTime  time.Duration // eraseTime
	traceTime  time.Duration // traceTime

	drained  atomic.Pointer[flowRef] // the last draining flow that was read; nil: begin with the first
	idlePoll atomic.Int64            // how long the last poll without result took
	waker    *enrollment.Waker       // wakes the workers of this process
	hook     *enrollment.Hook
}

// Package webhooks sends signed messages to customers' systems. It guarantees:
//
//   - A message that is written in a transaction is sent if and only if that commits.
//   - Every call for a message has the same body and the same webhook-id.
//   - The outcome of a message is settled once, in one transaction with its effects.
//
// A worker can crash between the call and the settlement, so a message may arrive
// twice. Receivers deduplicate by webhook-id. The writer of a message decides its
// content and the effects of its outcome.
package webhooks

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/dial"
	"lemma/secrets"
)

// Endpoint is an address to which messages of a workspace are sent.
type Endpoint struct {
	ID          uuid.UUID
	WorkspaceID uuid.UUID
	Name        string // unique in its workspace
	URL         string

	Subscriptions []Subscription
	Sequence      int64  // of its last event message
	Status        string // enabled or disabled
	StatusReason  *string
	DisabledAt    *time.Time

	Version   int // ETag
	CreatedAt time.Time
	UpdatedAt time.Time
}

// NewEndpoint has the fields of an endpoint to create.
type NewEndpoint struct {
	ID   uuid.UUID // from the caller, so that a repeated request creates one endpoint
	Name string
	URL  string

	Subscriptions []Subscription
}

// Patch changes an endpoint; nil leaves a field as it is.
type Patch struct {
	Name *string
	URL  *string

	Subscriptions *[]Subscription
	Status        *string
}

// Options bound which addresses are called, for how long, and how often. New
// replaces zero values by the defaults given here.
type Options struct {
	AllowPrivate bool            // call private addresses, also without TLS: for development and receivers in the own network
	Timeout      time.Duration   // of one call; 10 s
	Lease        time.Duration   // of a claimed message; 60 s, and at least three calls
	Workers      int             // concurrent calls of one process; 32
	PerEndpoint  int             // concurrent calls to one endpoint; 8, and 1 while it does not answer
	PerWorkspace int             // concurrent calls of one workspace in one process; three quarters of Workers: 24
	GiveUp       time.Duration   // age at which a message fails instead of being retried; 3 days
	BackOff      []time.Duration // before the second call, the third and so on; the last repeats. 5 s to 1 h
	Poll         time.Duration   // how often an idle process polls for due messages, and half of how often for events; 500 ms
	Keep         time.Duration   // how long the rows of ended messages are kept; 7 days. Published events are kept twice as long
	DisableAfter time.Duration   // how long an endpoint must fail to be disabled; 5 days, and less than Keep
}

// Deps are the dependencies of Webhooks.
type Deps struct {
	Pool    *pgxpool.Pool
	Box     *secrets.Box
	Log     *slog.Logger
	Metrics *Metrics
}

// Message is a request to an endpoint.
type Message struct {
	WorkspaceID  uuid.UUID
	ID           uuid.UUID // the receiver deduplicates by it; written twice, it is sent once
	EndpointID   uuid.UUID
	Body         []byte    // JSON; it is sent unchanged
	EnrollmentID uuid.UUID // waits for the answer at Step; zero: none
	Step         int
}

// Outcome is the result of a message that has ended.
type Outcome struct {
	WorkspaceID  uuid.UUID
	ID           uuid.UUID
	EnrollmentID uuid.UUID // of Outcomes: zero: none waits
	Step         int
	Delivered    bool
	Status       int    // of the last answer; 0 when there was none
	Error        string // a Reason constant; empty when delivered
	Attempts     int
}

// Settled is called with all messages that a transaction ends and for which an enrollment
// waits, in that transaction.
// After an error the transaction is rolled back and each message is settled alone.
type Settled func(ctx context.Context, tx pgx.Tx, all []Outcome) error

// Webhooks stores endpoints and sends messages to them.
type Webhooks struct {
	pool     *pgxpool.Pool
	box      *secrets.Box
	log      *slog.Logger
	metrics  *Metrics
	options  Options
	client   *http.Client
	limiter  *limiter
	buffers  buffers
	bodies   bodies
	settler  *settler
	wake     chan struct{}
	rotation rotation
	keyrings keyrings
	ready    readyEndpoints
	settled  Settled

	settling  time.Duration      // how long awaitOlder waits
	cleanPage int                // rows; cleanPage
	hook      func(stage string) // stops a worker in tests; nil in production
}

// New returns Webhooks. Without Log and Metrics both are discarded.
func New(d Deps, o Options) *Webhooks {
	o = o.withDefaults()
	settler := newSettler(o.Lease)
	w := &Webhooks{pool: d.Pool, box: d.Box, log: d.Log, metrics: d.Metrics, options: o, settler: settler,
		limiter: newLimiter(o.Workers, o.PerEndpoint, o.PerWorkspace, settler.isFull), wake: make(chan struct{}, 1),
		settling: settlingTime, cleanPage: cleanPage}
	if w.log == nil {
		w.log = slog.New(slog.DiscardHandler)
	}
	if w.metrics == nil {
		w.metrics = NewMetrics(nil)
	}
	w.client = newClient(dial.Dialer{AllowPrivate: o.AllowPrivate}, nil, o.Timeout, o.Workers)
	return w
}

// OnSettled sets the effects of ended messages. It is called once, before Loop.
func (w *Webhooks) OnSettled(f Settled) { w.settled = f }

func (o Options) withDefaults() Options {
	o.Timeout = orDefault(o.Timeout, 10*time.Second)
	o.Lease = max(orDefault(o.Lease, time.Minute), 3*o.Timeout)
	o.Workers = orDefault(o.Workers, 32)
	o.PerEndpoint = min(orDefault(o.PerEndpoint, 8), o.Workers)
	o.PerWorkspace = min(orDefault(o.PerWorkspace, max(1, o.Workers*3/4)), o.Workers)
	o.GiveUp = orDefault(o.GiveUp, 3*24*time.Hour)
	o.Poll = orDefault(o.Poll, 500*time.Millisecond)
	o.Keep = orDefault(o.Keep, 7*24*time.Hour)
	o.DisableAfter = min(orDefault(o.DisableAfter, 5*24*time.Hour), o.Keep*6/7)
	if len(o.BackOff) == 0 {
		o.BackOff = []time.Duration{5 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute, 30 * time.Minute, time.Hour}
	}
	return o
}

func orDefault[T int | time.Duration](v, otherwise T) T {
	if v <= 0 {
		return otherwise
	}
	return v
}

// reached calls the hook of a test.
func (w *Webhooks) reached(stage string) {
	if w.hook != nil {
		w.hook(stage)
	}
}

// Package webhooks tells customers' systems what happened. Its promises: a
// message that is written in a transaction goes out if that commits and not
// otherwise; it goes out as the same bytes under the same id each time, until
// it was taken or given up; and what came of it is settled once, in one
// transaction with whatever follows from it.
//
// A worker can die between the call and the settling, so a message may arrive
// twice: receivers tell by webhook-id. What is said, and to what end, is the
// affair of whoever writes the message.
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

// Endpoint is where messages of a workspace go.
type Endpoint struct {
	ID          uuid.UUID
	WorkspaceID uuid.UUID
	Name        string // unique in its workspace
	URL         string
	Version     int // ETag
	CreatedAt   time.Time
	UpdatedAt   time.Time
}

// NewEndpoint is what an endpoint is made from.
type NewEndpoint struct {
	ID   uuid.UUID // made by the caller, so that a repeated request makes it once
	Name string
	URL  string
}

// Patch changes an endpoint; nil leaves a field as it is.
type Patch struct {
	Name *string
	URL  *string
}

// Options bound what is called, for how long, and how often. Zero values are
// filled in by New.
type Options struct {
	AllowPrivate bool            // call loopback and private addresses, and without TLS too: for development, and receivers in one's own network
	Timeout      time.Duration   // of one call; 10 s
	Lease        time.Duration   // how long a worker may take over a message; 60 s, and at least three calls
	Workers      int             // calls at a time by one node; 32
	PerEndpoint  int             // of these to one endpoint; 8, and 1 while it does not answer
	GiveUp       time.Duration   // after which a message is not tried again; 3 days
	BackOff      []time.Duration // before the second call, the third and so on; the last repeats. 5 s to 1 h
	Poll         time.Duration   // how often an idle node looks for what is due; 500 ms
	Keep         time.Duration   // how long the rows of finished messages stay; 7 days
}

// Deps are what webhooks call.
type Deps struct {
	Pool    *pgxpool.Pool
	Box     *secrets.Box
	Log     *slog.Logger
	Metrics *Metrics
}

// Message is something to be said to an endpoint.
type Message struct {
	WorkspaceID  uuid.UUID
	ID           uuid.UUID // what the receiver dedupes by; written twice, it is said once
	EndpointID   uuid.UUID
	Body         []byte    // JSON; it goes out as it is
	EnrollmentID uuid.UUID // who waits for the answer, and at which step; zero: nobody
	Step         int
}

// Outcome is what came of a message.
type Outcome struct {
	WorkspaceID  uuid.UUID
	ID           uuid.UUID
	EnrollmentID uuid.UUID // zero when nobody waits
	Step         int
	Delivered    bool
	Status       int    // of the last answer; 0 when there was none
	Error        string // why it was not delivered, in one word; empty when it was
	Attempts     int
}

// Settled is called in the transaction that ends messages, with all of them. An
// error takes the settling back, and it is tried again, message by message.
type Settled func(ctx context.Context, tx pgx.Tx, all []Outcome) error

// Webhooks keeps endpoints and says to them what was written for them.
type Webhooks struct {
	pool    *pgxpool.Pool
	box     *secrets.Box
	log     *slog.Logger
	metrics *Metrics
	options Options
	client  *http.Client
	lanes   *lanes
	lines   lines
	settler settler
	wake    chan struct{}
	settled Settled
	hook    func(stage string) // what tests stop a worker with; nil in production
}

// New makes the room.
func New(r Deps, o Options) *Webhooks {
	o = o.withDefaults()
	w := &Webhooks{pool: r.Pool, box: r.Box, log: r.Log, metrics: r.Metrics, options: o, lanes: newLanes(o.Workers, o.PerEndpoint),
		settler: settler{open: make(chan struct{}, unsettled)}, wake: make(chan struct{}, 1)}
	if w.log == nil {
		w.log = slog.New(slog.DiscardHandler)
	}
	if w.metrics == nil {
		w.metrics = NewMetrics(nil)
	}
	w.client = newClient(dial.Dialer{AllowPrivate: o.AllowPrivate}, o.Timeout)
	return w
}

// OnSettled says what follows from the end of a message. It is set once,
// before Loop.
func (w *Webhooks) OnSettled(f Settled) { w.settled = f }

func (o Options) withDefaults() Options {
	o.Timeout = orDefault(o.Timeout, 10*time.Second)
	o.Lease = max(orDefault(o.Lease, time.Minute), 3*o.Timeout)
	o.Workers = orDefault(o.Workers, 32)
	o.PerEndpoint = min(orDefault(o.PerEndpoint, 8), o.Workers)
	o.GiveUp = orDefault(o.GiveUp, 3*24*time.Hour)
	o.Poll = orDefault(o.Poll, 500*time.Millisecond)
	o.Keep = orDefault(o.Keep, 7*24*time.Hour)
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

// reached tells a test where a worker is.
func (w *Webhooks) reached(stage string) {
	if w.hook != nil {
		w.hook(stage)
	}
}

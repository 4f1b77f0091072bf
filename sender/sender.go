// Package sender turns intents into calls. Its promise: a notification is
// called at most twice whatever crashes, at most once under at_most_once, and
// nothing that was called is forgotten.
//
// A batch goes through claim, windows of (open, send, commit) and its end. The
// batch row carries the lease; every write repeats the claim's token in its
// WHERE, and the rows affected are the answer. Before a row is called, a
// committed window covers it: what a crash leaves in doubt is that window and
// nothing else. A row whose outcome is unknown gets no outcome written; when
// the lease has run out the reaper alone decides about it.
//
// It decides nothing about who is written to: that is in notifications.
package sender

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/message"
	"lemma/notifications"
	"lemma/providers"
)

// Config are the times and sizes that a sender works by. Zero values are
// filled in by New.
type Config struct {
	Lease       time.Duration // how long a claim may act; 5 min
	CallTimeout time.Duration // the longest that one call may last; must be well under the lease; 30 s
	MaxWindow   int           // rows in doubt after a crash, at most; 500

	MaxDeferrals int           // how often a row that is refused for itself is tried again; 20
	DeferFor     time.Duration // before the first of these, doubled for each; 30 s
	DeferMost    time.Duration // at most; 1 h
	CircuitAfter int           // messages in a row, none accepted, that open the circuit; when all were rejected they pause the campaign; 100
	CircuitFirst time.Duration // from the opening of a circuit to its first probe, doubled for each that fails; 500 ms
	CircuitMost  time.Duration // at most; 30 s
	ProbeLease   time.Duration // how long a probe may act without being renewed; 5 s
	PauseAfter   time.Duration // how long a circuit is open before what needs it is paused; 15 min

	RecheckAfter time.Duration // rows that have waited longer are read again from their audience before they are called; 1 h
	Workers      int           // places at which this sender works a batch; 16
	PerProvider  int           // of these, what one provider may hold; a third of it while it is slow or unknown; three quarters
	PerWorkspace int           // of these, what one workspace may hold; three quarters

	ReapEvery  time.Duration // 1 min
	SweepEvery time.Duration // 30 s
	SweepGrace time.Duration // how late a batch must be before it is rung for again; 30 s
}

func (c Config) withDefaults() Config {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&c.Lease, 5 * time.Minute}, {&c.CallTimeout, 30 * time.Second},
		{&c.DeferFor, 30 * time.Second}, {&c.DeferMost, time.Hour},
		{&c.RecheckAfter, time.Hour},
		{&c.CircuitFirst, 500 * time.Millisecond}, {&c.CircuitMost, 30 * time.Second}, {&c.ProbeLease, 5 * time.Second}, {&c.PauseAfter, 15 * time.Minute},
		{&c.ReapEvery, time.Minute}, {&c.SweepEvery, 30 * time.Second}, {&c.SweepGrace, 30 * time.Second},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	for _, n := range []struct {
		field *int
		value int
	}{{&c.MaxWindow, 500}, {&c.MaxDeferrals, 20}, {&c.CircuitAfter, 100}, {&c.Workers, 16}} {
		if *n.field == 0 {
			*n.field = n.value
		}
	}
	for _, most := range []*int{&c.PerProvider, &c.PerWorkspace} {
		if *most == 0 {
			*most = threeQuarters(c.Workers)
		}
	}
	return c
}

func threeQuarters(n int) int { return (3*n + 3) / 4 }

// margin is what a lease must leave after the last moment at which a call may
// still be on its way: time for the commit, and for clocks that run unevenly.
func (c Config) margin() time.Duration { return c.Lease / 5 }

// renderFor is how long a window is rendered, but for the message that is being
// rendered then, which takes message.MaxTime at most.
func (c Config) renderFor() time.Duration { return min(time.Second, c.margin()/2) }

// Check refuses times with which a call could outlive its lease
// (SendingEngine: no holder uses a lease that has expired), and those with which
// rendering could: a window is rendered when a call and the margin are left.
func (c Config) Check() error {
	c = c.withDefaults()
	if most := c.Lease - 2*c.margin(); c.CallTimeout > most {
		return fmt.Errorf("call timeout %v is too long for a lease of %v: at most %v", c.CallTimeout, c.Lease, most)
	}
	if most := c.renderFor() + message.MaxTime; most > c.CallTimeout+c.margin() {
		return fmt.Errorf("a lease of %v is too short: rendering takes up to %v, more than the call timeout and a fifth of the lease", c.Lease, most)
	}
	return nil
}

// PauseOrigin pauses what a batch belongs to, because its provider fails.
type PauseOrigin func(ctx context.Context, workspaceID, origin uuid.UUID, reason, detail string) error

// Sender works batches. Any number of them may run on any number of nodes.
type Sender struct {
	pool      *pgxpool.Pool
	ledger    *notifications.Ledger
	templates *message.Templates
	accounts  *providers.Providers
	kinds     map[string]Kind
	pause     PauseOrigin
	again     Recheck // nil: nobody is read again
	errors    CheckErrors
	cfg       Config
	log       *slog.Logger
	metrics   *Metrics

	node     string        // names this sender in every token
	claims   atomic.Int64  // numbers its claims
	draining chan struct{} // closed by Drain
	drain    sync.Once
	cache    caches
	paces    sync.Map // provider id -> *pace
	rechecks rechecks

	unrendered errorCounts
	places     places
	turns      turns

	// Hook, when set, is called at named points of a batch's way. Tests stop
	// workers there; nothing else sets it.
	Hook func(ctx context.Context, at string, ref notifications.Ref)
}

// Deps are what a sender calls.
type Deps struct {
	Pool      *pgxpool.Pool
	Ledger    *notifications.Ledger
	Templates *message.Templates
	Providers *providers.Providers
	Kinds     []Kind
	Pause     PauseOrigin
	Recheck   Recheck     // nil: nobody is read again
	Errors    CheckErrors // nil: template errors pause nothing
	Log       *slog.Logger
	Metrics   *Metrics
}

// New makes a sender, or says why its times do not fit together.
func New(r Deps, cfg Config) (*Sender, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	s := &Sender{
		pool: r.Pool, ledger: r.Ledger, templates: r.Templates, accounts: r.Providers,
		kinds: map[string]Kind{}, pause: r.Pause, again: r.Recheck, errors: r.Errors, cfg: cfg, log: r.Log, metrics: r.Metrics,
		node: nodeName(), draining: make(chan struct{}),
	}
	for _, k := range r.Kinds {
		s.kinds[k.Name] = k
	}
	if s.log == nil {
		s.log = slog.Default()
	}
	if s.metrics == nil {
		s.metrics = NewMetrics(nil)
	}
	return s, nil
}

// nodeName is unlike that of any other process, even of one that had the same
// process id before.
func nodeName() string {
	host, _ := os.Hostname()
	var salt [4]byte
	_, _ = rand.Read(salt[:]) // never fails (crypto/rand)
	return fmt.Sprintf("%.40s.%d.%s", host, os.Getpid(), hex.EncodeToString(salt[:]))
}

// Node names this sender in tokens and logs.
func (s *Sender) Node() string { return s.node }

// token is fresh for every claim: a worker's name alone would let a claim that
// it lost pass the guard of one that it made later.
func (s *Sender) token() string {
	return fmt.Sprintf("%s/%d", s.node, s.claims.Add(1))
}

// Drain makes workers stop at the end of the window they are in, commit it and
// give the rest back. Calls on their way are heard to the end, so a shutdown
// leaves nothing unknown.
func (s *Sender) Drain() { s.drain.Do(func() { close(s.draining) }) }

func (s *Sender) isDraining() bool {
	select {
	case <-s.draining:
		return true
	default:
		return false
	}
}

// Close ends the carriers' connections. No batch is worked after it.
func (s *Sender) Close() { s.cache.close() }

func (s *Sender) at(ctx context.Context, point string, ref notifications.Ref) {
	if s.Hook != nil {
		s.Hook(ctx, point, ref)
	}
}

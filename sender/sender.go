// Package sender calls carriers. It guarantees:
//
//   - A carrier accepts a notification at most twice, whatever crashes, and at most
//     once under at_most_once. A call that was certainly not accepted is made again,
//     at most Config.MaxDeferrals times. After an unknown outcome there is one second
//     attempt, and none under at_most_once.
//   - No call is forgotten: every notification ends with an outcome.
//
// A batch goes through a claim, windows of (open, call, commit), and its end. The row
// of the batch has the lease: every write has the claim's token in its WHERE clause,
// and the affected rows are the answer. Before a row is called, a committed window
// contains it, so a crash leaves the rows of one window unknown and no others. A row
// whose outcome is unknown gets no outcome: when the lease has expired, only the
// reaper decides about it.
//
// A new carrier is a package below sender that implements Carrier, with a Kind that
// package server registers. It must pass the conformance tests of sendertest.
//
// Package notifications decides which recipients there are.
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

	"lemma/clock"
	"lemma/lifecycle"
	"lemma/message"
	"lemma/notifications"
	"lemma/providers"
	limits "lemma/slots"
	"lemma/suppression"
	"lemma/tracking"
	"lemma/unsubscribe"
)

// Config has the times and sizes of a sender. New replaces zero values by defaults.
type Config struct {
	Lease       time.Duration // how long a claim may act; 5 min
	CallTimeout time.Duration // the longest call; must be well under the lease; 30 s
	MaxWindow   int           // rows that a crash can leave unknown; 500

	ClaimBytes   int // data of a claim's rows in memory; the rest is read by window; 16 MiB
	WindowBytes  int // of a window's messages, at most a message more; 16 MiB
	MessageBytes int // of all messages in memory, three quarters of it for one workspace; 256 MiB

	MaxDeferrals int           // how often a row is called again that was refused for itself; 20
	DeferFor     time.Duration // until the first of these calls, doubled for each; 30 s
	DeferMost    time.Duration // at most; 1 h
	CircuitAfter int           // messages in a row, none accepted, that open the circuit; if all are rejected, they pause the campaign; 100
	CircuitFirst time.Duration // until the first probe of an open circuit, doubled for each that fails; 500 ms
	CircuitMost  time.Duration // at most; 30 s
	ProbeLease   time.Duration // how long a probe may act without being renewed; 5 s
	PauseAfter   time.Duration // how long a circuit is open before its campaigns and flows are paused; 15 min

	RecheckAfter   time.Duration // rows that were read longer ago are read again from their audience before the call; 1 h
	SuppressionAge time.Duration // when a window is opened, its addresses were checked for suppressions at most so long ago; 1 s
	Workers        int           // slots of this sender; 16
	DirectWorkers  int           // slots for direct notifications besides them, with limits by the same shares; 8
	PerProvider    int           // of these, for one provider; a third of it while it is slow or unknown; three quarters
	PerWorkspace   int           // of these, for one workspace; three quarters

	EventWait time.Duration // how long after the lease a second attempt waits for events of the carrier, at most; 10 min

	ReapEvery  time.Duration // 1 min
	FillEvery  time.Duration // how often an unused rate makes batches due; 1 s
	SweepEvery time.Duration // 30 s
	SweepGrace time.Duration // how late a batch without a job must be to be enqueued again; 30 s
}

func (c Config) withDefaults() Config {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&c.Lease, 5 * time.Minute}, {&c.CallTimeout, 30 * time.Second},
		{&c.DeferFor, 30 * time.Second}, {&c.DeferMost, time.Hour},
		{&c.RecheckAfter, time.Hour}, {&c.SuppressionAge, time.Second},
		{&c.CircuitFirst, 500 * time.Millisecond}, {&c.CircuitMost, 30 * time.Second}, {&c.ProbeLease, 5 * time.Second},
		{&c.PauseAfter, 15 * time.Minute}, {&c.EventWait, 10 * time.Minute},
		{&c.ReapEvery, time.Minute}, {&c.FillEvery, time.Second}, {&c.SweepEvery, 30 * time.Second}, {&c.SweepGrace, 30 * time.Second},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	for _, n := range []struct {
		field *int
		value int
	}{{&c.ClaimBytes, 16 << 20}, {&c.WindowBytes, 16 << 20}, {&c.MessageBytes, 256 << 20}, {&c.MaxWindow, 500}, {&c.MaxDeferrals,
		20}, {&c.CircuitAfter, 100}, {&c.Workers, 16}, {&c.DirectWorkers, 8}} {
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

// margin is the part of a lease after the last call, for the commit and for different clocks.
func (c Config) margin() time.Duration { return c.Lease / 5 }

// renderFor is how long a window may be rendered; the last message takes renderWithin more.
func (c Config) renderFor() time.Duration { return min(time.Second, c.margin()/2) }

// renderWithin is how long one message may be rendered, on a machine that does other work. A
// window is rendered while a call and the margin are left.
func (c Config) renderWithin() time.Duration {
	return min(message.MaxWait, c.CallTimeout+c.margin()-c.renderFor())
}

// Check rejects times with which a call or rendering could outlive its lease
// (SendingEngine: no holder uses a lease that has expired).
func (c Config) Check() error {
	c = c.withDefaults()
	if c.Lease > MostLease {
		return fmt.Errorf("a lease of %v is too long: at most %v", c.Lease, MostLease)
	}
	if most := c.Lease - 2*c.margin(); c.CallTimeout > most {
		return fmt.Errorf("call timeout %v is too long for a lease of %v: at most %v", c.CallTimeout, c.Lease, most)
	}
	if c.renderWithin() < message.MaxTime {
		return fmt.Errorf("a lease of %v is too short: rendering takes up to %v, more than the call timeout and a fifth of the lease",
			c.Lease, c.renderFor()+message.MaxTime)
	}
	return nil
}

// PauseOrigin pauses the campaign or flow of a batch, because its provider fails. uuid.Nil
// is no provider: another reason.
type PauseOrigin func(ctx context.Context, workspaceID, origin, provider uuid.UUID, cause lifecycle.Cause) (paused bool, err error)

// BatchEnded is called after a batch has ended. It must not block.
type BatchEnded func(workspaceID, origin uuid.UUID)

// Sender works batches. Any number of processes may each have one.
type Sender struct {
	pool      *pgxpool.Pool
	ledger    *notifications.Ledger
	templates *message.Templates
	accounts  *providers.Providers
	kinds     map[string]Kind
	pause     PauseOrigin
	again     Recheck // nil: no audience is read again
	errors    CheckErrors
	ended     BatchEnded
	pages     *unsubscribe.Pages // nil: no message has a link to unsubscribe
	tracking  *tracking.Tracking // nil: nothing is tracked
	checker   *suppression.Checker
	cfg       Config
	log       *slog.Logger
	metrics   *Metrics

	process  string        // names this sender in every token
	claims   atomic.Int64  // numbers its claims
	draining chan struct{} // closed by Drain
	drain    sync.Once
	cache    caches
	rechecks rechecks

	unrendered   errorCounts
	unpreparedAt reported // in the log
	slots        slots
	direct       slots         // of batches of direct notifications
	memory       *limits.Slots // bytes of messages
	fairness     fairness

	directFairness fairness // of direct notifications
	late           lateBatches
	ahead          aheadBatches
	filled         filled
	jumps          *clock.Jumps

	// Hook, when set, is called at named points of the work on a batch. Only tests set
	// it.
	Hook func(ctx context.Context, at string, ref notifications.Ref)
}

// Deps are the dependencies of a sender.
type Deps struct {
	Pool      *pgxpool.Pool
	Ledger    *notifications.Ledger
	Templates *message.Templates
	Providers *providers.Providers
	Kinds     []Kind
	Pause     PauseOrigin
	Recheck   Recheck              // nil: no audience is read again
	Errors    CheckErrors          // nil: template errors pause nothing
	Ended     BatchEnded           // nil: nothing is called
	Pages     *unsubscribe.Pages   // nil: no message has a link to unsubscribe
	Tracking  *tracking.Tracking   // nil: nothing is tracked
	Checker   *suppression.Checker // nil: one of its own
	Log       *slog.Logger
	Metrics   *Metrics
}

// New makes a sender. It returns an error when its times do not fit together.
func New(r Deps, cfg Config) (*Sender, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	s := &Sender{
		pool: r.Pool, ledger: r.Ledger, templates: r.Templates, accounts: r.Providers,
		kinds: map[string]Kind{}, pause: r.Pause, again: r.Recheck, errors: r.Errors, ended: r.Ended, pages: r.Pages,
		tracking: r.Tracking, checker: r.Checker, cfg: cfg, log: r.Log, metrics: r.Metrics,
		process: processName(), draining: make(chan struct{}), cache: newCaches(), memory: newMemory(cfg.MessageBytes),
		jumps: clock.NewJumps(MostLease),
	}
	s.slots.limit(cfg.Workers, cfg.PerProvider, cfg.PerWorkspace)
	s.fairness.of, s.directFairness.of = notDirect, isDirect
	s.direct.limit(cfg.DirectWorkers, threeQuarters(cfg.DirectWorkers), threeQuarters(cfg.DirectWorkers))
	for _, k := range r.Kinds {
		s.kinds[k.Name] = k
	}
	if s.checker == nil {
		s.checker = suppression.NewChecker(r.Pool, nil, suppression.Config{})
	}
	if s.ended == nil {
		s.ended = func(uuid.UUID, uuid.UUID) {}
	}
	if s.log == nil {
		s.log = slog.Default()
	}
	if s.metrics == nil {
		s.metrics = NewMetrics(nil)
	}
	return s, nil
}

// processName differs from the name of any other process, even of one with the same process
// id.
func processName() string {
	host, _ := os.Hostname()
	var salt [4]byte
	_, _ = rand.Read(salt[:]) // never fails (crypto/rand)
	return fmt.Sprintf("%.40s.%d.%s", host, os.Getpid(), hex.EncodeToString(salt[:]))
}

// Process is the name of this sender in tokens and logs.
func (s *Sender) Process() string { return s.process }

// token is new for every claim, since with a token by worker a lost claim could pass
// for a later one of the same worker.
func (s *Sender) token() string {
	return fmt.Sprintf("%s/%d", s.process, s.claims.Add(1))
}

// Drain makes workers commit the current window, with its answers, and give the rest back.
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

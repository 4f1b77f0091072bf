package flows

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"lemma"
)

// Record keeps an event and does what it means: it enrolls, wakes who waited
// for it and ends journeys that it was the goal of, all in one transaction.
// Events that come at the same time share one, since a commit costs more than
// an event.
func (f *Flows) Record(ctx context.Context, ws uuid.UUID, e Event) (Recorded, error) {
	o, err := e.occurrence()
	if err != nil {
		f.metrics.recorded([]Recorded{{Err: err}})
		return Recorded{}, err
	}
	return f.gather.record(ctx, f, ws, o)
}

// RecordAll keeps many events in one transaction, each as Record would. A
// broken one has an Err of its own and keeps nobody else from being recorded.
func (f *Flows) RecordAll(ctx context.Context, ws uuid.UUID, events []Event) ([]Recorded, error) {
	all := make([]Recorded, len(events))
	var sound []*occurrence
	var at []int
	for i, e := range events {
		o, err := e.occurrence()
		if err != nil {
			all[i].Err = err
			f.metrics.recorded(all[i : i+1])
			continue
		}
		sound, at = append(sound, o), append(at, i)
	}
	leave, err := f.bulks.enter(ctx, ws, max(2, len(events)))
	if isOverloaded(err) {
		f.metrics.turnedAway(len(sound))
	}
	if err != nil {
		return nil, err
	}
	defer leave()
	done, err := f.recordLot(ctx, ws, sound)
	if err != nil {
		return nil, err
	}
	for i, r := range done {
		all[at[i]] = r
	}
	return all, nil
}

// recordLot records sound events in one transaction.
func (f *Flows) recordLot(ctx context.Context, ws uuid.UUID, all []*occurrence) (done []Recorded, err error) {
	if len(all) == 0 {
		return nil, nil
	}
	var due map[share]bool
	err = f.transact(ctx, func(tx pgx.Tx) (err error) {
		t := &take{Flows: f, tx: tx, ws: ws}
		done, err = t.events(ctx, all)
		due = t.due
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("record %d events: %w", len(all), err)
	}
	f.metrics.recorded(done)
	f.bell.ringFor(due)
	return done, nil
}

// deadlocks is how often a transaction that Postgres broke off in favour of
// another is tried. They take their locks in one order, so this is a net, and
// a conflict of keys is no reason: that is an answer.
const deadlocks = 4

// afterDeadlock is the rest before the second try, doubled each time: who comes
// back at once takes the lock again that the other was about to get.
const afterDeadlock = 50 * time.Millisecond

// transact runs work in a transaction, again if it was the victim of a deadlock.
func (f *Flows) transact(ctx context.Context, work func(pgx.Tx) error) (err error) {
	for try := range deadlocks {
		if try > 0 {
			select {
			case <-ctx.Done():
				return err
			case <-time.After(afterDeadlock << (try - 1)):
			}
		}
		err = pgx.BeginFunc(ctx, f.pool, work)
		var said *pgconn.PgError
		if !errors.As(err, &said) || (said.Code != "40P01" && said.Code != "40001") {
			return err
		}
	}
	return err
}

// gatherer lets single events that arrive together be recorded together. The
// first finds nobody at work and is recorded at once; those that arrive
// meanwhile are the next lot. Nobody ever waits for others to come.
type gatherer struct {
	mu     sync.Mutex
	queues map[uuid.UUID]*queue // by workspace
	length int                  // of all queues
}

// What waits to be recorded in one process is bounded: beyond it a sender is
// told to come again, before memory runs out, and before one workspace's events
// leave no place for another's.
const (
	mostWaiting     = 10_000 // of all workspaces together
	mostOfWorkspace = 2_000  // of one
)

// codeOverloaded is said to whoever is turned away because too many are waiting.
const codeOverloaded = "overloaded"

func overloaded(message string) error {
	return &lemma.Error{Kind: lemma.Unavailable, Code: codeOverloaded, Message: message + "; try again in a moment"}
}

func isOverloaded(err error) bool { return err != nil && troubleOf(err) == codeOverloaded }

type queue struct {
	waiting []*waiting
	writers int
}

type waiting struct {
	*occurrence
	caller   context.Context
	done     chan struct{}
	recorded Recorded
	err      error
}

// left says that the caller has gone away before anything was done: nothing is.
func (w *waiting) left() bool {
	if w.caller.Err() == nil {
		return false
	}
	w.err = fmt.Errorf("wait for event to be recorded: %w", w.caller.Err())
	close(w.done)
	return true
}

// writers is how many lots of one workspace are written at a time.
const writers = 2

// record hands an event over and waits for what came of it. A caller that
// stops waiting does not stop an event that is being written.
func (g *gatherer) record(ctx context.Context, f *Flows, ws uuid.UUID, o *occurrence) (Recorded, error) {
	w := &waiting{occurrence: o, done: make(chan struct{}), caller: ctx}
	g.mu.Lock()
	q := g.queues[ws]
	if g.length >= mostWaiting || q != nil && len(q.waiting) >= mostOfWorkspace {
		g.mu.Unlock()
		f.metrics.turnedAway(1)
		return Recorded{}, overloaded("too many events are waiting to be recorded")
	}
	g.length++
	if q == nil {
		q = &queue{}
		g.queues[ws] = q
	}
	q.waiting = append(q.waiting, w)
	start := q.writers < writers
	if start {
		q.writers++
	}
	g.mu.Unlock()
	if start {
		go g.write(f, ws, q)
	}
	select {
	case <-w.done:
		return w.recorded, w.err
	case <-ctx.Done():
		return Recorded{}, fmt.Errorf("wait for event to be recorded: %w", ctx.Err())
	}
}

// write records what waits, lot by lot, until nothing does.
func (g *gatherer) write(f *Flows, ws uuid.UUID, q *queue) {
	for {
		g.mu.Lock()
		n := min(len(q.waiting), f.cfg.Gather)
		if n == 0 {
			if q.writers--; q.writers == 0 {
				delete(g.queues, ws)
			}
			g.mu.Unlock()
			return
		}
		lot := slices.Clone(q.waiting[:n])
		q.waiting = slices.Delete(q.waiting, 0, n)
		g.length -= n
		g.mu.Unlock()
		f.writeGathered(ws, slices.DeleteFunc(lot, (*waiting).left))
	}
}

// gatherFor bounds the transaction of a gathered lot.
const gatherFor = 30 * time.Second

// writeGathered records a lot for those who wait. If it fails each is tried by
// itself, so that nobody fails for another's sake.
func (f *Flows) writeGathered(ws uuid.UUID, lot []*waiting) {
	if len(lot) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), gatherFor)
	defer cancel()
	all := make([]*occurrence, len(lot))
	for i, w := range lot {
		all[i] = w.occurrence
	}
	done, err := f.recordLot(ctx, ws, all)
	for i, w := range lot {
		switch {
		case err == nil:
			w.recorded, w.err = done[i], done[i].Err
		case len(lot) == 1 || ctx.Err() != nil:
			w.err = err
		default:
			w.recorded, w.err = f.recordOne(ctx, ws, w.occurrence)
		}
		close(w.done)
	}
}

func (f *Flows) recordOne(ctx context.Context, ws uuid.UUID, o *occurrence) (Recorded, error) {
	done, err := f.recordLot(ctx, ws, []*occurrence{o})
	if err != nil {
		return Recorded{}, err
	}
	return done[0], done[0].Err
}

// Enrolled and Refused are the outcomes of a trigger.
const (
	Enrolled = "enrolled"
	Refused  = "refused"
)

// Reasons for which a trigger enrolls nobody. The API documents the list.
const (
	AlreadyEnrolled = "already_enrolled" // an enrollment with the same uniqueness key exists: the recurrence policy
	AlreadyActive   = "already_active"   // the profile is on its way through the flow
	Filtered        = "filtered"         // the trigger's condition is false
	ConditionError  = "condition_error"  // the trigger's condition cannot be decided with what there is
	IsPaused        = "paused"           // the flow is paused
	NotLive         = "not_live"         // the flow is draft, draining or archived
	NoProfile       = "no_profile"       // the profile is not in the audience
	InvalidKey      = "invalid_key"      // a person of the audience without a usable profile key
	MissingField    = "missing_field"    // the recurrence goes by a property that the trigger lacks
)

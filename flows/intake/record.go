package intake

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/flows/admission"
	"lemma/flows/enrollment"
	"lemma/flows/execution"
)

// Record records an event and applies it: it enrolls, wakes enrollments that wait for it
// and ends those whose goal it is, all in one transaction. Concurrent events share one,
// since a commit costs more than an event.
func (in *Intake) Record(ctx context.Context, ws uuid.UUID, e Event) (Recorded, error) {
	now, err := in.clock.Now(ctx)
	if err != nil {
		return Recorded{}, err
	}
	o, err := e.Check(now)
	if err != nil {
		in.countRecorded([]Recorded{{Err: err}})
		return Recorded{}, err
	}
	r, err := in.gather.Do(ctx, ws, o)
	if admission.IsOverloaded(err) {
		in.rejected(1)
	}
	if err == nil {
		err = r.Err
	}
	return r, err
}

// RecordAll records many events in one transaction, each as Record does. An invalid one
// has its own Err and does not affect the others.
func (in *Intake) RecordAll(ctx context.Context, ws uuid.UUID, events []Event) ([]Recorded, error) {
	now, err := in.clock.Now(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]Recorded, len(events))
	var sound []*Trigger
	var at []int
	for i, e := range events {
		o, err := e.Check(now)
		if err != nil {
			all[i].Err = err
			in.countRecorded(all[i : i+1])
			continue
		}
		sound, at = append(sound, o), append(at, i)
	}
	place, err := in.bulks.Acquire(ctx, ws, max(2, len(events)))
	if admission.IsOverloaded(err) {
		in.rejected(len(sound))
	}
	if err != nil {
		return nil, err
	}
	defer place.Leave()
	done, err := in.record(ctx, ws, sound, in.request(place))
	if err != nil {
		return nil, err
	}
	for i, r := range done {
		all[at[i]] = r
	}
	return all, nil
}

// recordChunk records valid single events in one transaction.
func (in *Intake) recordChunk(ctx context.Context, ws uuid.UUID, all []*Trigger) ([]Recorded, error) {
	return in.record(ctx, ws, all, execution.Request{Time: in.compileTime})
}

// request bounds compiling for a request with a place, which others have meanwhile.
func (in *Intake) request(place *admission.Place) execution.Request {
	return execution.Request{Time: in.compileTime, Aside: place.Aside}
}

// record records valid events in one transaction.
func (in *Intake) record(ctx context.Context, ws uuid.UUID, all []*Trigger, by execution.Request) (done []Recorded, err error) {
	if len(all) == 0 {
		return nil, nil
	}
	var due map[enrollment.Shard]bool
	err = in.exec.Versions.Transact(ctx, in.pool, ws, by, func(tx pgx.Tx, versions *execution.Ready) (err error) {
		t := &transaction{Intake: in, tx: tx, ws: ws, versions: versions}
		if done, err = t.events(ctx, all); err != nil {
			return err
		}
		due = t.due
		return enrollment.LowerBounds(ctx, tx, due)
	})
	if err != nil {
		return nil, fmt.Errorf("record %d events: %w", len(all), err)
	}
	in.countRecorded(done)
	in.waker.WakeShards(due)
	return done, nil
}

// countRecorded counts the results of events.
func (in *Intake) countRecorded(all []Recorded) {
	m := in.metrics
	for _, r := range all {
		switch {
		case errors.Is(r.Err, errOffered):
			m.Events.WithLabelValues("too_many_enrollments").Inc()
			continue
		case r.Overloaded():
			m.Events.WithLabelValues("condition_time").Inc()
			continue
		case r.Err != nil:
			m.Events.WithLabelValues("invalid").Inc()
		case r.Duplicate:
			m.Events.WithLabelValues("duplicate").Inc()
		default:
			m.Events.WithLabelValues("recorded").Inc()
		}
		m.Steps.WithLabelValues(enrollment.StepExited).Add(float64(r.Exited))
		for _, one := range r.Results {
			m.Triggered(one.Outcome, one.Reason, 1)
		}
	}
}

// rejected counts events that were refused because too many are waiting.
func (in *Intake) rejected(n int) {
	in.metrics.Events.WithLabelValues(admission.CodeOverloaded).Add(float64(n))
}

package intake

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/flows/admission"
	"lemma/flows/execution"
)

// What the tests of this package use of its internals.

type Poll = poll

const (
	PollAtOnce = pollAtOnce
	PollChunk  = pollChunk

	MostCompared = mostCompared
)

func (p *poll) SetStart(at time.Time) { p.start = at }

func (in *Intake) ClaimPoll(ctx context.Context) (*Poll, error) { return in.claimPoll(ctx) }

func (in *Intake) Poll(ctx context.Context, p Poll) error { return in.poll(ctx, p) }

func (in *Intake) PollAudience(ctx context.Context, p Poll) (polled, error) {
	return in.pollAudience(ctx, p)
}

func (in *Intake) FinishPoll(ctx context.Context, p Poll, d polled) error {
	return in.finishPoll(ctx, p, d)
}

func (in *Intake) RenewPoll(ctx context.Context, stop context.CancelFunc, p Poll) {
	in.renewPoll(ctx, stop, p)
}

func (in *Intake) Bulks() *admission.Bulks { return &in.bulks }

// SetMostOffered changes the bound on the enrollments of one transaction.
func (in *Intake) SetMostOffered(n int) { in.mostOffered = n }

// SetConditionTime changes the bound on the conditions of one transaction.
func (in *Intake) SetConditionTime(d time.Duration) { in.conditionTime = d }

// SetCompileTime changes the bound on compiling for one request.
func (in *Intake) SetCompileTime(d time.Duration) { in.compileTime = d }

// SetTriggerBytes changes the bound on a page of triggers.
func (in *Intake) SetTriggerBytes(n int) { in.triggerBytes = n }

// SetMostActive changes the bound on the active enrollments of a profile.
func (in *Intake) SetMostActive(n int) { in.mostActive = n }

// SetGather makes do record single events, one by one.
func (in *Intake) SetGather(do func()) {
	in.gather = admission.NewGatherer(1, func(_ context.Context, _ uuid.UUID, all []*Trigger) ([]Recorded, error) {
		do()
		return make([]Recorded, len(all)), nil
	})
}

// RecordIn records events in a transaction that the test ends.
func (in *Intake) RecordIn(ctx context.Context, tx pgx.Tx, ws uuid.UUID, events ...Event) ([]Recorded, error) {
	var all []*Trigger
	for _, e := range events {
		o, err := e.Check(time.Now())
		if err != nil {
			return nil, err
		}
		all = append(all, o)
	}
	var done []Recorded
	err := in.compiled(ctx, tx, ws, func(t *transaction) (err error) {
		done, err = t.events(ctx, all)
		return err
	})
	return done, err
}

// compiled runs work in a savepoint of a test's transaction, and again when versions that
// it needs have been compiled.
func (in *Intake) compiled(ctx context.Context, tx pgx.Tx, ws uuid.UUID, work func(*transaction) error) error {
	return in.exec.Versions.Compiled(ctx, in.pool, ws, execution.Request{}, func(versions *execution.Ready) error {
		return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
			return work(&transaction{Intake: in, tx: tx, ws: ws, versions: versions})
		})
	})
}

// EnrollIn enrolls directly in a transaction that the test ends.
func (in *Intake) EnrollIn(ctx context.Context, tx pgx.Tx, ws, flow uuid.UUID, e Enrolling) error {
	o, err := e.Check(flow, time.Now())
	if err != nil {
		return err
	}
	return in.compiled(ctx, tx, ws, func(t *transaction) error {
		if err := t.readFlow(ctx, flow); err != nil {
			return err
		}
		if _, err := t.lockProfiles(ctx, []*Trigger{o}); err != nil {
			return err
		}
		return t.enroll(ctx, []int{0}, []*Trigger{o}, make([]Recorded, 1))
	})
}

// AnswerAgain answers requests that were recorded before.
func (in *Intake) AnswerAgain(ctx context.Context, tx pgx.Tx, ws, flow uuid.UUID, all []Enrolling) ([]Recorded, error) {
	o := make([]*Trigger, len(all))
	for i, e := range all {
		var err error
		if o[i], err = e.Check(flow, time.Now()); err != nil {
			return nil, err
		}
	}
	t := &transaction{Intake: in, tx: tx, ws: ws}
	fresh, err := t.keepDirect(ctx, flow, o)
	if err != nil {
		return nil, err
	}
	done := make([]Recorded, len(all))
	return done, t.answerAgain(ctx, flow, o, fresh, done)
}

package query

import (
	"context"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/flows/execution"
	"lemma/flows/intake"
)

// Simulation is an enrollment without effects: one real profile, and the events that are
// assumed.
type Simulation struct {
	ProfileKey string
	// What enrolls: event, audience or direct. Empty: the kind of Trigger, or without one
	// the audience, if a version has no other triggers.
	Source   string
	Trigger  intake.Event   // Name empty: no event
	At       time.Time      // time of the enrollment; zero: now
	Events   []intake.Event // later events, by OccurredAt
	Webhooks map[string]int // node -> status of the answer, 200 to 599, or 0: given up; absent: 200
}

// Simulate evaluates a version, draft or not, for one profile: see
// Evaluator.Simulate. Version 0 is the live one.
func (r *Reader) Simulate(ctx context.Context, ws, flow uuid.UUID, version int, s Simulation) (execution.Simulated, error) {
	v, err := r.versionOf(ctx, ws, flow, version)
	if err != nil {
		return execution.Simulated{}, err
	}
	route, err := r.flows.Route(ctx, ws, v)
	if err != nil {
		return execution.Simulated{}, err
	}
	now, err := r.clock.Now(ctx)
	if err != nil {
		return execution.Simulated{}, err
	}
	script, err := s.script(route, now)
	if err != nil {
		return execution.Simulated{}, err
	}
	made, err := r.exec.Simulate(ctx, route, script)
	return made, lemma.Wrap(err, "simulate version %d of flow %s", v.Version, flow)
}

// script checks the input, all at once.
func (in Simulation) script(r *execution.Route, now time.Time) (execution.Script, error) {
	begin := in.At
	if begin.IsZero() {
		begin = now
	}
	s := execution.Script{ProfileKey: in.ProfileKey, Source: in.enrolls(r), Answers: in.Webhooks,
		Begin: begin.UTC().Truncate(time.Microsecond)}
	var fields []lemma.Field
	if s.Begin.Before(intake.EarliestTime) || s.Begin.After(now.Add(execution.MaxSimulated)) {
		fields = append(fields,
			lemma.Field{Pointer: "/at", Code: "out_of_range", Detail: "must be between 2000 and three years ahead"})
	}
	fields = append(fields, in.readTrigger(r, &s, now)...)
	fields = append(fields, in.readLater(&s, now)...)
	fields = append(fields, wrongAnswers(r, in.Webhooks)...)
	if len(fields) > 0 {
		return execution.Script{}, &lemma.Error{Kind: lemma.Invalid, Message: "the simulation is not valid", Fields: fields}
	}
	return s, nil
}

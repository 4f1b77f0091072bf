package query

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"lemma"
	"lemma/flows/enrollment"
	"lemma/flows/execution"
	"lemma/flows/graph"
	"lemma/flows/intake"
)

// The input of a simulation is checked all at once.

// maxSimulatedEvents bounds the later events of a simulation.
const maxSimulatedEvents = 100

// enrolls is the kind of trigger that enrolls.
func (in Simulation) enrolls(r *execution.Route) string {
	switch {
	case in.Source != "":
		return in.Source
	case in.Trigger.Name != "":
		return enrollment.FromEvent
	case in.hasMore(), len(r.Triggers()) == 0, slices.ContainsFunc(r.Triggers(),
		func(t graph.CompiledTrigger) bool { return t.Type != enrollment.FromAudience }):
		return enrollment.FromDirect
	}
	return enrollment.FromAudience
}

// hasMore reports whether the trigger has fields that only events and requests have.
func (in Simulation) hasMore() bool {
	return in.Trigger.ID != "" || len(in.Trigger.Properties) > 0 || !in.Trigger.OccurredAt.IsZero()
}

// misfits are the fields that a trigger of its source does not have.
func (in Simulation) misfits(source string) (fields []lemma.Field) {
	switch {
	case source != enrollment.FromEvent && source != enrollment.FromAudience && source != enrollment.FromDirect:
		fields = append(fields,
			lemma.Field{Pointer: "/trigger/type", Code: "not_allowed", Detail: "must be event, audience or direct"})
	case source != enrollment.FromEvent && in.Trigger.Name != "":
		fields = append(fields,
			lemma.Field{Pointer: "/trigger/event", Code: "not_allowed", Detail: "only a trigger of type event has it"})
	case source == enrollment.FromAudience && in.hasMore():
		fields = append(fields,
			lemma.Field{Pointer: "/trigger", Code: "not_allowed", Detail: "a trigger of type audience has no properties, id or time"})
	}
	return fields
}

// readTrigger checks the trigger, as if it were recorded now. Its own time may be any.
func (in Simulation) readTrigger(r *execution.Route, s *execution.Script, now time.Time) []lemma.Field {
	if fields := in.misfits(s.Source); fields != nil {
		return fields
	}
	e := in.Trigger
	e.ProfileKey, e.OccurredAt = in.ProfileKey, time.Time{}
	var err error
	var o *intake.Trigger
	if s.Source == enrollment.FromEvent {
		o, err = e.Check(now)
	} else {
		o, err = (intake.Enrolling{ProfileKey: e.ProfileKey, ID: e.ID, Properties: e.Properties}).Check(r.FlowID, now)
	}
	fields := below("/trigger", err)
	for i := range fields {
		if fields[i].Pointer == "/trigger/profile_key" {
			fields[i].Pointer = "/profile_key"
		}
	}
	at := in.Trigger.OccurredAt
	if at.IsZero() {
		at = s.Begin
	} else if at.Before(intake.EarliestTime) || at.After(s.Begin.Add(intake.LatestAhead)) {
		fields = append(fields, lemma.Field{Pointer: "/trigger/occurred_at", Code: "out_of_range",
			Detail: "must be between 2000 and a day after the enrollment"})
	}
	if o != nil {
		s.Trigger = happening(o, at)
	}
	return fields
}

// happening is a trigger at another time.
func happening(o *intake.Trigger, at time.Time) execution.Happening {
	o.At = at.UTC().Truncate(time.Microsecond)
	return execution.Happening{Key: o.Key, Name: o.Name, At: o.At, Data: o.Data()}
}

// readLater checks the later events.
func (in Simulation) readLater(s *execution.Script, now time.Time) (fields []lemma.Field) {
	if len(in.Events) > maxSimulatedEvents {
		return []lemma.Field{{Pointer: "/events", Code: "too_many",
			Detail: fmt.Sprintf("a simulation has at most %d events", maxSimulatedEvents)}}
	}
	for i, e := range in.Events {
		pointer, at := "/events/"+strconv.Itoa(i), e.OccurredAt
		e.ProfileKey, e.OccurredAt = "profile", time.Time{}
		o, err := e.Check(now)
		fields = append(fields, below(pointer, err)...)
		switch {
		case at.IsZero():
			fields = append(fields, lemma.Field{Pointer: pointer + "/occurred_at", Code: "required", Detail: "give the time of the event"})
		case at.Before(s.Begin):
			fields = append(fields,
				lemma.Field{Pointer: pointer + "/occurred_at", Code: "out_of_range", Detail: "must not be before the enrollment"})
		case o != nil:
			s.Later = append(s.Later, happening(o, at))
		}
	}
	slices.SortStableFunc(s.Later, func(a, b execution.Happening) int { return a.At.Compare(b.At) })
	return fields
}

// below are the fields of an error, with their pointers below another.
func below(pointer string, err error) []lemma.Field {
	var e *lemma.Error
	if !errors.As(err, &e) {
		return nil
	}
	fields := slices.Clone(e.Fields)
	for i := range fields {
		fields[i].Pointer = pointer + fields[i].Pointer
	}
	return fields
}

func wrongAnswers(r *execution.Route, answers map[string]int) (fields []lemma.Field) {
	for id, status := range answers {
		at := "/webhooks" + lemma.Pointer(id)
		if node, ok := r.Node(id); !ok || node.Type != graph.Webhook {
			fields = append(fields, lemma.Field{Pointer: at, Code: "unknown_node", Detail: "the version has no webhook node of this name"})
		}
		if status != 0 && (status < 200 || status > 599) {
			fields = append(fields, lemma.Field{Pointer: at, Code: "out_of_range", Detail: "must be 200 to 599, or 0 for given up"})
		}
	}
	slices.SortStableFunc(fields, func(a, b lemma.Field) int { return strings.Compare(a.Pointer, b.Pointer) })
	return fields
}

package flows

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"lemma"
	"lemma/flows/graph"
)

// What a simulation is asked with, checked all at once.

// enrolls tells what it is that enrolls: an event, the audience or a request.
func (in Simulation) enrolls(r *route) string {
	switch {
	case in.Source != "":
		return in.Source
	case in.Trigger.Name != "":
		return fromEvent
	case in.saysMore(), len(r.Triggers()) == 0, slices.ContainsFunc(r.Triggers(), func(t graph.CompiledTrigger) bool { return t.Type != fromAudience }):
		return fromDirect
	}
	return fromAudience
}

// saysMore tells whether the trigger has what only events and requests have.
func (in Simulation) saysMore() bool {
	return in.Trigger.ID != "" || len(in.Trigger.Properties) > 0 || !in.Trigger.OccurredAt.IsZero()
}

// misfits are what a trigger of its source does not have.
func (in Simulation) misfits(source string) (fields []lemma.Field) {
	switch {
	case source != fromEvent && source != fromAudience && source != fromDirect:
		fields = append(fields, lemma.Field{Pointer: "/trigger/type", Code: "unknown", Detail: "what enrolls is an event, audience or direct"})
	case source != fromEvent && in.Trigger.Name != "":
		fields = append(fields, lemma.Field{Pointer: "/trigger/event", Code: "not_allowed", Detail: "only a trigger of the type event has one"})
	case source == fromAudience && in.saysMore():
		fields = append(fields, lemma.Field{Pointer: "/trigger", Code: "not_allowed", Detail: "whoever is found in the audience comes without properties, id and time"})
	}
	return fields
}

// readTrigger checks what enrolls, as if it came now. Its own time may be any.
func (s *simulation) readTrigger(r *route, in Simulation) []lemma.Field {
	source := in.enrolls(r)
	if fields := in.misfits(source); fields != nil {
		return fields
	}
	e := in.Trigger
	e.ProfileKey, e.OccurredAt = in.ProfileKey, time.Time{}
	var err error
	if source == fromEvent {
		s.trigger, err = e.occurrence()
	} else if s.trigger, err = (Enrolling{ProfileKey: e.ProfileKey, ID: e.ID, Properties: e.Properties}).occurrence(r.flow); err == nil {
		s.trigger.source = source
	}
	fields := below("/trigger", err)
	for i := range fields {
		if fields[i].Pointer == "/trigger/profile_key" {
			fields[i].Pointer = "/profile_key"
		}
	}
	at := in.Trigger.OccurredAt
	if at.IsZero() {
		at = s.begin
	} else if at.Before(earliest) || at.After(s.begin.Add(latest)) {
		fields = append(fields, lemma.Field{Pointer: "/trigger/occurred_at", Code: "out_of_range", Detail: "the time is before 2000, or more than a day after the enrollment"})
	}
	if s.trigger != nil {
		s.trigger.at = at.UTC().Truncate(time.Microsecond)
	}
	return fields
}

// readLater checks what is to come.
func (s *simulation) readLater(in Simulation) (fields []lemma.Field) {
	if len(in.Events) > maxSimulatedEvents {
		return []lemma.Field{{Pointer: "/events", Code: "too_many", Detail: fmt.Sprintf("a simulation has at most %d events", maxSimulatedEvents)}}
	}
	for i, e := range in.Events {
		pointer, at := "/events/"+strconv.Itoa(i), e.OccurredAt
		e.ProfileKey, e.OccurredAt = "anybody", time.Time{}
		o, err := e.occurrence()
		fields = append(fields, below(pointer, err)...)
		switch {
		case at.IsZero():
			fields = append(fields, lemma.Field{Pointer: pointer + "/occurred_at", Code: "required", Detail: "say when it happens"})
		case at.Before(s.begin):
			fields = append(fields, lemma.Field{Pointer: pointer + "/occurred_at", Code: "out_of_range", Detail: "it is before the enrollment"})
		case o != nil:
			o.at, o.profile = at.UTC().Truncate(time.Microsecond), in.ProfileKey
			s.later = append(s.later, o)
		}
	}
	slices.SortStableFunc(s.later, func(a, b *occurrence) int { return a.at.Compare(b.at) })
	return fields
}

// below are the fields of an error, under a pointer.
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

func wrongAnswers(r *route, answers map[string]int) (fields []lemma.Field) {
	for id, status := range answers {
		at := "/webhooks" + pointer(id)
		if node, ok := r.Node(id); !ok || node.Type != graph.Webhook {
			fields = append(fields, lemma.Field{Pointer: at, Code: "unknown_node", Detail: "the version has no webhook node of this name"})
		}
		if status != 0 && (status < 200 || status > 599) {
			fields = append(fields, lemma.Field{Pointer: at, Code: "out_of_range", Detail: "a status is 200 to 599, or 0 for given up"})
		}
	}
	slices.SortStableFunc(fields, func(a, b lemma.Field) int { return strings.Compare(a.Pointer, b.Pointer) })
	return fields
}

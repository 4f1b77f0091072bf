package api

import (
	"context"
	"encoding/json"

	"lemma"
	"lemma/client"
	"lemma/flows/intake"
	"lemma/flows/query"
)

// eventOf converts the event for package flows; retry identifies the HTTP request.
func eventOf(in client.NewEvent, retry string) intake.Event {
	return intake.Event{ID: in.SourceID, Retry: retry, ProfileKey: in.ProfileKey, Name: in.Event, Properties: in.Properties,
		OccurredAt: orZero(in.OccurredAt)}
}

type recordedBody struct{ client.RecordedEvent }

func (b recordedBody) location() string { return "/v1/events/" + b.ID }

func showRecorded(r intake.Recorded) recordedBody {
	b := recordedBody{client.RecordedEvent{ID: lemma.FormatID(lemma.PrefixEvent, r.Key), Status: "accepted",
		Results: each(r.Results, showResult), Resumed: r.Woken, Exited: r.Exited}}
	if r.Duplicate {
		b.Status = "duplicate"
	}
	return b
}

func (s *server) recordEvent(ctx context.Context, c *call, in client.NewEvent) (recordedBody, error) {
	r, err := s.Flows.Intake.Record(ctx, c.workspace(), eventOf(in, c.retry(0)))
	if err == nil {
		err = r.Err
	}
	recorded := showRecorded(r)
	recorded.SourceID = orNull(in.SourceID)
	return recorded, err
}

// hasEventID reports whether the event has a source_id, by which it is recorded once.
func hasEventID(in client.NewEvent) bool { return in.SourceID != "" }

// haveEventIDs reports whether all events of a bulk have a source_id.
func haveEventIDs(in newEvents) bool {
	return allItems(in.Events, hasEventID)
}

type newEvents struct {
	Events []json.RawMessage `json:"events"`
}

func (s *server) recordEvents(ctx context.Context, c *call, in newEvents) (client.RecordedEvents, error) {
	all, err := readItems[client.NewEvent](ctx, s, c, "events", "NewEvent", in.Events)
	if err != nil {
		return client.RecordedEvents{}, err
	}
	events := make([]intake.Event, 0, len(all.sound))
	for _, i := range all.sound {
		events = append(events, eventOf(all.items[i].value, c.retry(i)))
	}
	done, err := s.Flows.Intake.RecordAll(ctx, c.workspace(), events)
	if err != nil {
		return client.RecordedEvents{}, err
	}
	out, err := recordedItems(all, done)
	for i := range out.Results {
		out.Results[i].SourceID = orNull(all.items[i].value.SourceID)
	}
	return out, err
}

// recordedItems merges the results of the valid items with the faults of the others.
func recordedItems(l items[client.NewEvent], done []intake.Recorded) (client.RecordedEvents, error) {
	out := client.RecordedEvents{Results: make([]client.RecordedItem, len(l.items))}
	for i, d := range done {
		at := l.sound[i]
		if d.Overloaded() {
			l.put(at, d.Err)
			out.Results[at].Status = "overloaded"
			continue
		}
		if err := l.blame(at, d.Err); err != nil {
			return out, err
		}
		b := showRecorded(d)
		out.Results[at] = client.RecordedItem{ID: &b.ID, Status: b.Status, Results: b.Results, Resumed: b.Resumed, Exited: b.Exited}
	}
	for i := range out.Results {
		r := &out.Results[i]
		r.Index, r.Errors = i, each(l.items[i].faults, showFault)
		switch {
		case r.Status == "overloaded":
			r.Results = []client.EnrollResult{}
			out.Counts.Overloaded++
		case len(r.Errors) > 0:
			r.ID, r.Status, r.Results = nil, "invalid", []client.EnrollResult{}
			out.Counts.Invalid++
		case r.Status == "duplicate":
			out.Counts.Duplicate++
		default:
			out.Counts.Accepted++
		}
	}
	return out, nil
}

func showEvent(e query.StoredEvent) client.Event {
	b := client.Event{ID: lemma.FormatID(lemma.PrefixEvent, e.Key), SourceID: orNull(e.ID), ProfileKey: e.ProfileKey, Event: e.Name,
		Properties: e.Properties, OccurredAt: e.OccurredAt.UTC(), CreatedAt: e.ReceivedAt.UTC()}
	if len(b.Properties) == 0 {
		b.Properties = json.RawMessage("{}")
	}
	return b
}

func (s *server) listEvents(ctx context.Context, c *call, _ none) (list[client.Event], error) {
	found, next, err := s.FlowReader.ListEvents(ctx, c.workspace(), c.query("profile_key"), c.query("event"), c.page())
	return listOf(found, next, err, showEvent)
}

func (s *server) getEvent(ctx context.Context, c *call, _ none) (client.EventWithResults, error) {
	found, results, err := s.FlowReader.GetEvent(ctx, c.workspace(), c.id)
	return client.EventWithResults{Event: showEvent(found), Results: each(results, showResult)}, err
}

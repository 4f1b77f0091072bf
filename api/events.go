package api

import (
	"context"
	"encoding/json"
	"time"

	"lemma"
	"lemma/flows/intake"
	"lemma/flows/query"
)

// newEvent is one event of a request.
type newEvent struct {
	ProfileKey string          `json:"profile_key"`
	Event      string          `json:"event"`
	Properties json.RawMessage `json:"properties"`
	SourceID   string          `json:"source_id"`
	OccurredAt time.Time       `json:"occurred_at"`
}

// event converts the event for package flows; retry identifies the HTTP request.
func (in newEvent) event(retry string) intake.Event {
	return intake.Event{ID: in.SourceID, Retry: retry, ProfileKey: in.ProfileKey, Name: in.Event, Properties: in.Properties,
		OccurredAt: in.OccurredAt}
}

type recordedBody struct {
	ID       string         `json:"id"`
	SourceID *string        `json:"source_id"`
	Status   string         `json:"status"`
	Results  []enrollResult `json:"results"`
	Resumed  int            `json:"resumed"`
	Exited   int            `json:"exited"`
}

func (b recordedBody) location() string { return "/v1/events/" + b.ID }

func showRecorded(r intake.Recorded) recordedBody {
	b := recordedBody{ID: lemma.FormatID(lemma.PrefixEvent, r.Key), Status: "accepted", Results: each(r.Results, showResult),
		Resumed: r.Woken, Exited: r.Exited}
	if r.Duplicate {
		b.Status = "duplicate"
	}
	return b
}

func (s *server) recordEvent(ctx context.Context, c *call, in newEvent) (recordedBody, error) {
	r, err := s.Flows.Intake.Record(ctx, c.workspace(), in.event(c.retry(0)))
	if err == nil {
		err = r.Err
	}
	recorded := showRecorded(r)
	recorded.SourceID = orNull(in.SourceID)
	return recorded, err
}

// hasEventID reports whether the event has a source_id, by which it is recorded once.
func hasEventID(in newEvent) bool { return in.SourceID != "" }

// haveEventIDs reports whether all events of a bulk have a source_id.
func haveEventIDs(in newEvents) bool {
	return allItems(in.Events, hasEventID)
}

type newEvents struct {
	Events []json.RawMessage `json:"events"`
}

type recordedEvents struct {
	Results []recordedItem `json:"results"`
	Counts  recordedCounts `json:"counts"`
}

type recordedCounts struct {
	Accepted   int `json:"accepted"`
	Duplicate  int `json:"duplicate"`
	Invalid    int `json:"invalid"`
	Overloaded int `json:"overloaded"`
}

type recordedItem struct {
	Index    int            `json:"index"`
	ID       *string        `json:"id"`
	SourceID *string        `json:"source_id"`
	Status   string         `json:"status"`
	Results  []enrollResult `json:"results"`
	Resumed  int            `json:"resumed"`
	Exited   int            `json:"exited"`
	Errors   []problemFault `json:"errors"`
}

func (s *server) recordEvents(ctx context.Context, c *call, in newEvents) (recordedEvents, error) {
	all, err := readItems[newEvent](ctx, s, c, "events", "NewEvent", in.Events)
	if err != nil {
		return recordedEvents{}, err
	}
	events := make([]intake.Event, 0, len(all.sound))
	for _, i := range all.sound {
		events = append(events, all.items[i].value.event(c.retry(i)))
	}
	done, err := s.Flows.Intake.RecordAll(ctx, c.workspace(), events)
	if err != nil {
		return recordedEvents{}, err
	}
	out, err := recordedItems(all, done)
	for i := range out.Results {
		out.Results[i].SourceID = orNull(all.items[i].value.SourceID)
	}
	return out, err
}

// recordedItems merges the results of the valid items with the faults of the others.
func recordedItems(l items[newEvent], done []intake.Recorded) (recordedEvents, error) {
	out := recordedEvents{Results: make([]recordedItem, len(l.items))}
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
		out.Results[at] = recordedItem{ID: &b.ID, Status: b.Status, Results: b.Results, Resumed: b.Resumed, Exited: b.Exited}
	}
	for i := range out.Results {
		r := &out.Results[i]
		r.Index, r.Errors = i, each(l.items[i].faults, showFault)
		switch {
		case r.Status == "overloaded":
			r.Results = []enrollResult{}
			out.Counts.Overloaded++
		case len(r.Errors) > 0:
			r.ID, r.Status, r.Results = nil, "invalid", []enrollResult{}
			out.Counts.Invalid++
		case r.Status == "duplicate":
			out.Counts.Duplicate++
		default:
			out.Counts.Accepted++
		}
	}
	return out, nil
}

type eventBody struct {
	ID         string          `json:"id"`
	SourceID   *string         `json:"source_id"`
	ProfileKey string          `json:"profile_key"`
	Event      string          `json:"event"`
	Properties json.RawMessage `json:"properties"`
	OccurredAt time.Time       `json:"occurred_at"`
	CreatedAt  time.Time       `json:"created_at"`
}

func showEvent(e query.StoredEvent) eventBody {
	b := eventBody{ID: lemma.FormatID(lemma.PrefixEvent, e.Key), SourceID: orNull(e.ID), ProfileKey: e.ProfileKey, Event: e.Name,
		Properties: e.Properties, OccurredAt: e.OccurredAt.UTC(), CreatedAt: e.ReceivedAt.UTC()}
	if len(b.Properties) == 0 {
		b.Properties = json.RawMessage("{}")
	}
	return b
}

func (s *server) listEvents(ctx context.Context, c *call, _ none) (list[eventBody], error) {
	found, next, err := s.FlowReader.ListEvents(ctx, c.workspace(), c.query("profile_key"), c.query("event"), c.page())
	return listOf(found, next, err, showEvent)
}

type eventWithResults struct {
	eventBody
	Results []enrollResult `json:"results"`
}

func (s *server) getEvent(ctx context.Context, c *call, _ none) (eventWithResults, error) {
	found, results, err := s.FlowReader.GetEvent(ctx, c.workspace(), c.id)
	return eventWithResults{showEvent(found), each(results, showResult)}, err
}

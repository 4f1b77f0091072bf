package api

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"lemma"
	"lemma/flows"
)

// newEvent is one event as it is told.
type newEvent struct {
	ProfileKey string          `json:"profile_key"`
	Event      string          `json:"event"`
	Properties json.RawMessage `json:"properties"`
	ID         string          `json:"id"`
	OccurredAt time.Time       `json:"occurred_at"`
}

// event is what flows are told; retry names the request that tells it.
func (in newEvent) event(retry string) flows.Event {
	return flows.Event{ID: in.ID, Retry: retry, ProfileKey: in.ProfileKey, Name: in.Event, Properties: in.Properties, OccurredAt: in.OccurredAt}
}

type recordedBody struct {
	ID      string         `json:"id"`
	Status  string         `json:"status"`
	Results []enrollResult `json:"results"`
	Woken   int            `json:"woken"`
	Exited  int            `json:"exited"`
}

func (b recordedBody) location() string { return "/v1/events/" + b.ID }

func showRecorded(r flows.Recorded) recordedBody {
	b := recordedBody{ID: lemma.FormatID(lemma.PrefixEvent, r.Key), Status: "accepted", Results: each(r.Results, showResult), Woken: r.Woken, Exited: r.Exited}
	if r.Duplicate {
		b.Status = "duplicate"
	}
	return b
}

func (s *server) recordEvent(ctx context.Context, c *call, in newEvent) (recordedBody, error) {
	r, err := s.Flows.Record(ctx, c.workspace(), in.event(c.retry(0)))
	if err == nil {
		err = r.Err
	}
	return showRecorded(r), err
}

// hasEventID: the event's own id decides that it is recorded once.
func hasEventID(in newEvent) bool { return in.ID != "" }

// haveEventIDs is hasEventID of a bulk.
func haveEventIDs(in newEvents) bool {
	return !slices.ContainsFunc(in.Events, func(raw json.RawMessage) bool {
		var e newEvent
		return json.Unmarshal(raw, &e) != nil || !hasEventID(e)
	})
}

type newEvents struct {
	Events []json.RawMessage `json:"events"`
}

type recordedEvents struct {
	Results    []recordedItem `json:"results"`
	Accepted   int            `json:"accepted"`
	Duplicates int            `json:"duplicates"`
	Invalid    int            `json:"invalid"`
}

type recordedItem struct {
	Index   int            `json:"index"`
	ID      *string        `json:"id"`
	Status  string         `json:"status"`
	Results []enrollResult `json:"results"`
	Woken   int            `json:"woken"`
	Exited  int            `json:"exited"`
	Errors  []problemFault `json:"errors"`
}

func (s *server) recordEvents(ctx context.Context, c *call, in newEvents) (recordedEvents, error) {
	lot := readItems[newEvent]("events", "NewEvent", in.Events)
	told := make([]flows.Event, 0, len(lot.sound))
	for _, i := range lot.sound {
		told = append(told, lot.items[i].value.event(c.retry(i)))
	}
	done, err := s.Flows.RecordAll(ctx, c.workspace(), told)
	if err != nil {
		return recordedEvents{}, err
	}
	return lot.recorded(done)
}

// recorded puts what came of the sound items among the faults of the others.
func (l itemLot[T]) recorded(done []flows.Recorded) (recordedEvents, error) {
	out := recordedEvents{Results: make([]recordedItem, len(l.items))}
	for i, d := range done {
		at := l.sound[i]
		if err := l.blame(at, d.Err); err != nil {
			return out, err
		}
		b := showRecorded(d)
		out.Results[at] = recordedItem{ID: &b.ID, Status: b.Status, Results: b.Results, Woken: b.Woken, Exited: b.Exited}
	}
	for i := range out.Results {
		r := &out.Results[i]
		r.Index, r.Errors = i, each(l.items[i].faults, showFault)
		switch {
		case len(r.Errors) > 0:
			r.ID, r.Status, r.Results = nil, "invalid", []enrollResult{}
			out.Invalid++
		case r.Status == "duplicate":
			out.Duplicates++
		default:
			out.Accepted++
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
	ReceivedAt time.Time       `json:"received_at"`
}

func showEvent(e flows.StoredEvent) eventBody {
	b := eventBody{ID: lemma.FormatID(lemma.PrefixEvent, e.Key), SourceID: orNull(e.ID), ProfileKey: e.ProfileKey, Event: e.Name, Properties: e.Properties,
		OccurredAt: e.OccurredAt.UTC(), ReceivedAt: e.ReceivedAt.UTC()}
	if len(b.Properties) == 0 {
		b.Properties = json.RawMessage("{}")
	}
	return b
}

func (s *server) listEvents(ctx context.Context, c *call, _ none) (list[eventBody], error) {
	found, next, err := s.Flows.ListEvents(ctx, c.workspace(), c.query("profile_key"), c.query("event"), c.page())
	return listOf(found, next, err, showEvent)
}

type eventWithResults struct {
	eventBody
	Results []enrollResult `json:"results"`
}

func (s *server) getEvent(ctx context.Context, c *call, _ none) (eventWithResults, error) {
	id, err := c.id(lemma.PrefixEvent, "event")
	if err != nil {
		return eventWithResults{}, err
	}
	found, results, err := s.Flows.GetEvent(ctx, c.workspace(), id)
	return eventWithResults{showEvent(found), each(results, showResult)}, err
}

package client

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"time"
)

// NewEvent is an event of a profile.
type NewEvent struct {
	ProfileKey string          `json:"profile_key"`
	Event      string          `json:"event"`
	Properties json.RawMessage `json:"properties,omitempty"`  // an object
	SourceID   string          `json:"source_id,omitempty"`   // the caller's id; a second event with the same id has no effect
	OccurredAt *time.Time      `json:"occurred_at,omitempty"` // nil: now
}

// RecordedEvent is the result of an event.
type RecordedEvent struct {
	ID       string         `json:"id"`
	SourceID *string        `json:"source_id"`
	Status   string         `json:"status"`  // accepted, duplicate
	Results  []EnrollResult `json:"results"` // one for each triggered flow
	Resumed  int            `json:"resumed"` // number of enrollments that waited for it
	Exited   int            `json:"exited"`  // number of enrollments that it ended
}

// RecordedEvents are the results of events, in the order of the request.
type RecordedEvents struct {
	Results []RecordedItem `json:"results"`
	Counts  RecordedCounts `json:"counts"`
}

// RecordedCounts are numbers of items by status.
type RecordedCounts struct {
	Accepted   int `json:"accepted"`
	Duplicate  int `json:"duplicate"`
	Invalid    int `json:"invalid"`
	Overloaded int `json:"overloaded"`
}

// RecordedItem is the result of one of several events.
type RecordedItem struct {
	Index    int            `json:"index"`
	ID       *string        `json:"id"` // nil: the event is invalid or overloaded
	SourceID *string        `json:"source_id"`
	Status   string         `json:"status"` // accepted, duplicate, invalid, overloaded (not stored; send it again in another request)
	Results  []EnrollResult `json:"results"`
	Resumed  int            `json:"resumed"`
	Exited   int            `json:"exited"`
	Errors   []Fault        `json:"errors"`
}

// Event is a recorded event.
type Event struct {
	ID         string          `json:"id"`        // Lemma's
	SourceID   *string         `json:"source_id"` // the caller's
	ProfileKey string          `json:"profile_key"`
	Event      string          `json:"event"`
	Properties json.RawMessage `json:"properties"`
	OccurredAt time.Time       `json:"occurred_at"`
	CreatedAt  time.Time       `json:"created_at"`
}

// EventWithResults is an event with its results.
type EventWithResults struct {
	Event
	Results []EnrollResult `json:"results"`
}

// RecordEvent records an event.
func (c *Client) RecordEvent(ctx context.Context, e NewEvent, options ...CallOption) (RecordedEvent, error) {
	return call[RecordedEvent](ctx, c, e, options, http.MethodPost, "/v1/events")
}

// RecordEvents records up to 1,000 events. An event with faults is invalid, and the others
// are recorded.
func (c *Client) RecordEvents(ctx context.Context, all []NewEvent, options ...CallOption) (RecordedEvents, error) {
	body := struct {
		Events []NewEvent `json:"events"`
	}{all}
	return call[RecordedEvents](ctx, c, body, options, http.MethodPost, "/v1/events/bulk")
}

// ListEvents reads the events of a profile, newest first; name may be empty.
func (c *Client) ListEvents(ctx context.Context, profileKey, name string, options ...CallOption) iter.Seq2[Event, error] {
	fill := func(r *request) { r.set("profile_key", profileKey); r.set("event", name) }
	return each[Event](ctx, c, fill, options, "/v1/events")
}

// GetEvent reads an event.
func (c *Client) GetEvent(ctx context.Context, id string, options ...CallOption) (EventWithResults, error) {
	return call[EventWithResults](ctx, c, nil, options, http.MethodGet, "/v1/events/%s", id)
}

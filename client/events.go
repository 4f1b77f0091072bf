package client

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"time"
)

// NewEvent is something that a profile did.
type NewEvent struct {
	ProfileKey string          `json:"profile_key"`
	Event      string          `json:"event"`
	Properties json.RawMessage `json:"properties,omitempty"`  // an object
	SourceID   string          `json:"source_id,omitempty"`   // the caller's own: recorded twice under one, it counts once
	OccurredAt *time.Time      `json:"occurred_at,omitempty"` // nil: now
}

// RecordedEvent is what came of an event.
type RecordedEvent struct {
	ID       string         `json:"id"`
	SourceID *string        `json:"source_id"`
	Status   string         `json:"status"`  // accepted, duplicate
	Results  []EnrollResult `json:"results"` // one for each flow that it triggers
	Resumed  int            `json:"resumed"` // enrollments that waited for it
	Exited   int            `json:"exited"`  // enrollments that it ended
}

// RecordedEvents are what came of many, each at its index.
type RecordedEvents struct {
	Results []RecordedItem `json:"results"`
	Counts  RecordedCounts `json:"counts"`
}

// RecordedCounts are how many items have which status.
type RecordedCounts struct {
	Accepted   int `json:"accepted"`
	Duplicate  int `json:"duplicate"`
	Invalid    int `json:"invalid"`
	Overloaded int `json:"overloaded"`
}

// RecordedItem is what came of one of many.
type RecordedItem struct {
	Index    int            `json:"index"`
	ID       *string        `json:"id"` // nil: it is invalid or overloaded
	SourceID *string        `json:"source_id"`
	Status   string         `json:"status"` // accepted, duplicate, invalid, overloaded (not stored: send it again, in another request)
	Results  []EnrollResult `json:"results"`
	Resumed  int            `json:"resumed"`
	Exited   int            `json:"exited"`
	Errors   []Fault        `json:"errors"`
}

// Event is an event as it is kept.
type Event struct {
	ID         string          `json:"id"`        // Lemma's
	SourceID   *string         `json:"source_id"` // the sender's own
	ProfileKey string          `json:"profile_key"`
	Event      string          `json:"event"`
	Properties json.RawMessage `json:"properties"`
	OccurredAt time.Time       `json:"occurred_at"`
	CreatedAt  time.Time       `json:"created_at"`
}

// EventWithResults is an event with what came of it.
type EventWithResults struct {
	Event
	Results []EnrollResult `json:"results"`
}

// RecordEvent records an event.
func (c *Client) RecordEvent(ctx context.Context, e NewEvent, options ...CallOption) (RecordedEvent, error) {
	return call[RecordedEvent](ctx, c, e, options, http.MethodPost, "/v1/events")
}

// RecordEvents records up to 1,000 events. A broken one is invalid, and the
// others are kept.
func (c *Client) RecordEvents(ctx context.Context, all []NewEvent, options ...CallOption) (RecordedEvents, error) {
	body := struct {
		Events []NewEvent `json:"events"`
	}{all}
	return call[RecordedEvents](ctx, c, body, options, http.MethodPost, "/v1/events/bulk")
}

// ListEvents reads what a profile did, newest first; name may be empty.
func (c *Client) ListEvents(ctx context.Context, profileKey, name string, options ...CallOption) iter.Seq2[Event, error] {
	fill := func(r *request) { r.set("profile_key", profileKey); r.set("event", name) }
	return each[Event](ctx, c, fill, options, "/v1/events")
}

// GetEvent reads an event.
func (c *Client) GetEvent(ctx context.Context, id string, options ...CallOption) (EventWithResults, error) {
	return call[EventWithResults](ctx, c, nil, options, http.MethodGet, "/v1/events/%s", id)
}

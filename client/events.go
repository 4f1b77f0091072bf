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
	ID         string          `json:"id,omitempty"`          // the sender's own: told twice, it counts once
	OccurredAt *time.Time      `json:"occurred_at,omitempty"` // nil: now
}

// RecordedEvent is what came of an event.
type RecordedEvent struct {
	ID      string         `json:"id"`
	Status  string         `json:"status"`  // accepted, duplicate
	Results []EnrollResult `json:"results"` // one for each flow that it triggers
	Woken   int            `json:"woken"`   // enrollments that waited for it
	Exited  int            `json:"exited"`  // enrollments that it ended
}

// RecordedEvents are what came of many, each at its index.
type RecordedEvents struct {
	Results    []RecordedItem `json:"results"`
	Accepted   int            `json:"accepted"`
	Duplicates int            `json:"duplicates"`
	Invalid    int            `json:"invalid"`
}

// RecordedItem is what came of one of many.
type RecordedItem struct {
	Index   int            `json:"index"`
	ID      *string        `json:"id"`     // nil: it is invalid
	Status  string         `json:"status"` // accepted, duplicate, invalid
	Results []EnrollResult `json:"results"`
	Woken   int            `json:"woken"`
	Exited  int            `json:"exited"`
	Errors  []Fault        `json:"errors"`
}

// Event is an event as it is kept.
type Event struct {
	ID         string          `json:"id"`        // Lemma's
	SourceID   *string         `json:"source_id"` // the sender's own
	ProfileKey string          `json:"profile_key"`
	Event      string          `json:"event"`
	Properties json.RawMessage `json:"properties"`
	OccurredAt time.Time       `json:"occurred_at"`
	ReceivedAt time.Time       `json:"received_at"`
}

// EventWithResults is an event with what came of it.
type EventWithResults struct {
	Event
	Results []EnrollResult `json:"results"`
}

// RecordEvent tells what a profile did.
func (c *Client) RecordEvent(ctx context.Context, e NewEvent, options ...CallOption) (RecordedEvent, error) {
	return call[RecordedEvent](ctx, c, e, options, http.MethodPost, "/v1/events")
}

// RecordEvents tells up to 1,000 at once. A broken one is invalid, and the
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

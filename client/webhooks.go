package client

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"time"
)

// WebhookSubscription selects events for an endpoint.
type WebhookSubscription struct {
	Types       []string          `json:"types"` // such as notification.sent; see the contract
	CampaignIDs []string          `json:"campaign_ids,omitempty"`
	FlowIDs     []string          `json:"flow_ids,omitempty"`
	Metadata    map[string]string `json:"metadata,omitempty"` // entries that the campaign, flow or direct notification must have
}

// NewWebhookEndpoint is a URL that is to receive messages.
type NewWebhookEndpoint struct {
	Name          string                `json:"name"`
	URL           string                `json:"url"`
	Subscriptions []WebhookSubscription `json:"subscriptions,omitempty"` // empty: only what flows send
}

// WebhookEndpointPatch changes an endpoint; nil leaves a field as it is.
type WebhookEndpointPatch struct {
	Name          *string                `json:"name,omitempty"`
	URL           *string                `json:"url,omitempty"`
	Subscriptions *[]WebhookSubscription `json:"subscriptions,omitempty"` // replaces all
	Status        *string                `json:"status,omitempty"`        // enabled, disabled
}

// WebhookEndpoint receives messages.
type WebhookEndpoint struct {
	ID            string                `json:"id"`
	Name          string                `json:"name"`
	URL           string                `json:"url"`
	Subscriptions []WebhookSubscription `json:"subscriptions"`
	Sequence      int64                 `json:"sequence"`      // number of the last event message
	Status        string                `json:"status"`        // enabled, disabled
	StatusReason  *string               `json:"status_reason"` // why it is disabled: requested, failing
	DisabledAt    *time.Time            `json:"disabled_at"`
	Health        *WebhookHealth        `json:"health,omitempty"` // by GetWebhookEndpoint
	Secret        *string               `json:"secret,omitempty"` // by CreateWebhookEndpoint and RotateWebhookEndpoint, once
	CreatedAt     time.Time             `json:"created_at"`
	UpdatedAt     time.Time             `json:"updated_at"`

	ETag string `json:"-"` // for IfMatch; empty in lists
}

// WebhookHealth is the state of an endpoint's messages.
type WebhookHealth struct {
	Pending         int             `json:"pending"` // counted up to 10,000
	OldestPending   *time.Time      `json:"oldest_pending_since"`
	LastDeliveredAt *time.Time      `json:"last_delivered_at"`
	LastFailure     *WebhookFailure `json:"last_failure"`
}

// WebhookFailure is a call that did not deliver.
type WebhookFailure struct {
	At         time.Time `json:"at"`
	StatusCode *int      `json:"status_code"`
	Reason     string    `json:"reason"`
}

// WebhookDelivery is a message with its delivery.
type WebhookDelivery struct {
	ID           string     `json:"id"` // the webhook-id that it is sent under
	Status       string     `json:"status"`
	Attempts     int        `json:"attempts"`
	StatusCode   *int       `json:"status_code"`
	Reason       *string    `json:"reason"`
	CalledAt     *time.Time `json:"called_at"`
	NextAt       *time.Time `json:"next_at"`
	EventID      *string    `json:"event_id"` // nil: it carries no event
	Type         *string    `json:"type"`     // of the event, or test; nil: a flow node sends it
	Sequence     *int64     `json:"sequence"`
	FlowID       *string    `json:"flow_id"`
	EnrollmentID *string    `json:"enrollment_id"`
	CreatedAt    time.Time  `json:"created_at"`
	FinishedAt   *time.Time `json:"finished_at"`
}

// WebhookResend selects messages that are sent again: one by its id, or those of a time.
type WebhookResend struct {
	MessageID     string     `json:"message_id,omitempty"` // without the other fields
	CreatedAfter  *time.Time `json:"created_after,omitempty"`
	CreatedBefore *time.Time `json:"created_before,omitempty"`
	Statuses      []string   `json:"statuses,omitempty"` // delivered, failed; empty: failed
}

// EventOut is an event with its items as they are now.
type EventOut struct {
	ID         string         `json:"id"`
	Type       string         `json:"type"`
	OccurredAt time.Time      `json:"occurred_at"`
	CampaignID *string        `json:"campaign_id"`
	FlowID     *string        `json:"flow_id"`
	Count      int            `json:"count"`
	Data       map[string]any `json:"data"`
	Items      []EventOutItem `json:"items"`
}

// EventOutItem is a notification, an enrollment or a suppression of an event.
type EventOutItem struct {
	ID         string  `json:"id"`
	Detail     *string `json:"detail"`      // why, when the event occurred
	ProfileKey *string `json:"profile_key"` // nil: it was deleted, or is a suppression
	Status     *string `json:"status"`
	Reason     *string `json:"reason"`
	Channel    *string `json:"channel"` // of a suppression
	Address    *string `json:"address"` // of a suppression; nil also if it was erased
}

// WebhookEndpointFilter filters a list. Empty fields are not used.
type WebhookEndpointFilter struct{ Status, Name string }

// WebhookMessageFilter filters a list.
type WebhookMessageFilter struct {
	Status string // required: pending, delivered, failed
	Type   string // of the event; empty: all
}

// endpoint sends a request whose answer is an endpoint with its ETag.
func (c *Client) endpoint(ctx context.Context, body any, options []CallOption, method, path string, parts ...any) (WebhookEndpoint, error) {
	e, etag, err := tagged[WebhookEndpoint](ctx, c, body, options, method, path, parts...)
	e.ETag = etag
	return e, err
}

// ListWebhookEndpoints lists endpoints.
func (c *Client) ListWebhookEndpoints(
	ctx context.Context, f WebhookEndpointFilter, options ...CallOption,
) iter.Seq2[WebhookEndpoint, error] {
	return each[WebhookEndpoint](ctx, c, func(r *request) {
		r.set("status", f.Status)
		r.set("name", f.Name)
	}, options, "/v1/webhook_endpoints")
}

// ErrSecretLost is the error of a call whose first try has made a secret, while its answer was lost. The
// endpoint is returned. RotateWebhookEndpoint makes another secret.
var ErrSecretLost = errors.New("lemma: the secret was lost with the answer to an earlier try; rotate the endpoint's secret")

// CreateWebhookEndpoint creates an endpoint, and returns its secret, or ErrSecretLost.
func (c *Client) CreateWebhookEndpoint(ctx context.Context, n NewWebhookEndpoint, options ...CallOption) (WebhookEndpoint, error) {
	return withSecret(c.endpoint(ctx, n, options, http.MethodPost, "/v1/webhook_endpoints"))
}

func withSecret(e WebhookEndpoint, err error) (WebhookEndpoint, error) {
	if err == nil && e.Secret == nil {
		err = ErrSecretLost
	}
	return e, err
}

// GetWebhookEndpoint reads an endpoint with its health.
func (c *Client) GetWebhookEndpoint(ctx context.Context, id string, options ...CallOption) (WebhookEndpoint, error) {
	return c.endpoint(ctx, nil, options, http.MethodGet, "/v1/webhook_endpoints/%s", id)
}

// UpdateWebhookEndpoint changes, disables or enables an endpoint.
func (c *Client) UpdateWebhookEndpoint(
	ctx context.Context, id string, p WebhookEndpointPatch, options ...CallOption,
) (WebhookEndpoint, error) {
	return c.endpoint(ctx, p, options, http.MethodPatch, "/v1/webhook_endpoints/%s", id)
}

// DeleteWebhookEndpoint deletes an endpoint with its messages.
func (c *Client) DeleteWebhookEndpoint(ctx context.Context, id string, options ...CallOption) error {
	_, err := call[struct{}](ctx, c, nil, options, http.MethodDelete, "/v1/webhook_endpoints/%s", id)
	return err
}

// ListWebhookMessages lists the messages of an endpoint with a status.
func (c *Client) ListWebhookMessages(
	ctx context.Context, id string, f WebhookMessageFilter, options ...CallOption,
) iter.Seq2[WebhookDelivery, error] {
	return each[WebhookDelivery](ctx, c, func(r *request) {
		r.set("status", f.Status)
		r.set("type", f.Type)
	}, options, "/v1/webhook_endpoints/%s/messages", id)
}

// RotateWebhookEndpoint makes another secret, and returns it, or ErrSecretLost. Messages are signed with
// both for a day.
func (c *Client) RotateWebhookEndpoint(ctx context.Context, id string, options ...CallOption) (WebhookEndpoint, error) {
	return withSecret(c.endpoint(ctx, nil, options, http.MethodPost, "/v1/webhook_endpoints/%s/rotate", id))
}

// ResendWebhookMessages sends messages again, and returns how many.
func (c *Client) ResendWebhookMessages(ctx context.Context, id string, what WebhookResend, options ...CallOption) (WebhookResent, error) {
	return call[WebhookResent](ctx, c, what, options, http.MethodPost, "/v1/webhook_endpoints/%s/resend", id)
}

// WebhookResent is how many messages are sent again.
type WebhookResent struct {
	Resent int64 `json:"resent"`
}

// TestWebhookEndpoint queues a message of the type test.
func (c *Client) TestWebhookEndpoint(ctx context.Context, id string, options ...CallOption) (WebhookDelivery, error) {
	return call[WebhookDelivery](ctx, c, nil, options, http.MethodPost, "/v1/webhook_endpoints/%s/test", id)
}

// GetEventOut reads an event that a message carries, with its items.
func (c *Client) GetEventOut(ctx context.Context, id string, options ...CallOption) (EventOut, error) {
	return call[EventOut](ctx, c, nil, options, http.MethodGet, "/v1/events_out/%s", id)
}

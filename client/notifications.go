package client

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"time"
)

// NewNotification is one message to one recipient. It has a template or a content.
type NewNotification struct {
	To              NotificationTo    `json:"to"`
	Channel         string            `json:"channel,omitempty"` // must be that of the content; empty: it is
	TemplateID      string            `json:"template_id,omitempty"`
	TemplateVersion int               `json:"template_version,omitempty"` // 0: the newest
	Content         *NotificationText `json:"content,omitempty"`
	Data            json.RawMessage   `json:"data,omitempty"`        // an object: the variables of the content
	ProviderID      string            `json:"provider_id,omitempty"` // empty: the only one of the channel
	From            *Sender           `json:"from,omitempty"`        // required for email
	ReplyTo         string            `json:"reply_to,omitempty"`
	Headers         map[string]string `json:"headers,omitempty"`
	Metadata        map[string]string `json:"metadata,omitempty"`
	Transactional   *bool             `json:"transactional,omitempty"` // nil: true without a topic
	TopicID         string            `json:"topic_id,omitempty"`
	Strategy        string            `json:"strategy,omitempty"`   // at_most_once (the default), at_least_once
	SendAt          *time.Time        `json:"send_at,omitempty"`    // nil: now
	ExpiresAt       *time.Time        `json:"expires_at,omitempty"` // nil: never
	Key             string            `json:"key,omitempty"`        // the caller's id of the message: under one key one is sent
	LockFor         string            `json:"lock_for,omitempty"`   // ISO 8601; empty: as the workspace has it
	SealFor         string            `json:"seal_for,omitempty"`   // the same
}

// NotificationTo is an address, or a profile of an audience.
type NotificationTo struct {
	Address    string `json:"address,omitempty"`
	ProfileKey string `json:"profile_key,omitempty"`
	AudienceID string `json:"audience_id,omitempty"`
}

// NotificationText is a content without a template. Fields of other channels are empty.
type NotificationText struct {
	Channel     string            `json:"channel,omitempty"` // empty: email
	Subject     string            `json:"subject,omitempty"`
	HTML        string            `json:"html,omitempty"`
	Text        string            `json:"text,omitempty"`
	Title       string            `json:"title,omitempty"`
	Body        string            `json:"body,omitempty"`
	Link        string            `json:"link,omitempty"`
	Data        map[string]string `json:"data,omitempty"`
	TrackOpens  *bool             `json:"track_opens,omitempty"`
	TrackClicks *bool             `json:"track_clicks,omitempty"`
}

// Notification is one message to one address.
type Notification struct {
	ID            string            `json:"id"`
	Origin        string            `json:"origin"` // campaign, flow, direct
	CampaignID    *string           `json:"campaign_id"`
	FlowID        *string           `json:"flow_id"`
	EnrollmentID  *string           `json:"enrollment_id"`
	Node          *string           `json:"node"`
	Channel       string            `json:"channel"`
	ProfileKey    string            `json:"profile_key"`
	Address       *string           `json:"address"`
	Metadata      map[string]string `json:"metadata"`
	Status        string            `json:"status"` // pending, processing, sent, failed, orphaned, skipped, cancelled
	Reason        *string           `json:"reason"`
	Attempts      int               `json:"attempts"`
	ReplyCode     *int              `json:"reply_code"`
	CarrierID     *string           `json:"carrier_id"`
	CarrierDetail *string           `json:"carrier_detail"`
	CreatedAt     time.Time         `json:"created_at"`
	DueAt         *time.Time        `json:"due_at"`
	ExpiresAt     *time.Time        `json:"expires_at"`
	EndedAt       *time.Time        `json:"ended_at"`
	Resolution    *string           `json:"resolution"`
	ResolvedAt    *time.Time        `json:"resolved_at"`
	Delivery      string            `json:"delivery"`
	DeliveryAt    *time.Time        `json:"delivery_at"`

	EffectiveBound *DeliveryBound `json:"effective_bound,omitempty"` // of a notification that is read alone
}

// DeliveryBound is how many deliveries of a notification are possible.
type DeliveryBound struct {
	Word     string `json:"word"` // never, once, replaced, twice
	Sentence string `json:"sentence"`
}

// SentNotification is the answer to a request.
type SentNotification struct {
	Notification Notification `json:"notification"`
	Filtered     bool         `json:"filtered_by_idempotency"` // the key is sealed: the notification is that of the first request
	Others       *int         `json:"other_addresses"`         // further addresses of the profile; nil: an earlier notification
}

// SentNotifications are the results of requests, in their order.
type SentNotifications struct {
	Results []SentItem `json:"results"`
	Counts  SentCounts `json:"counts"`
}

// SentCounts are numbers of items by status.
type SentCounts struct {
	Accepted int `json:"accepted"`
	Filtered int `json:"filtered"`
	Locked   int `json:"locked"`
	Invalid  int `json:"invalid"`
}

// SentItem is the result of one of several requests.
type SentItem struct {
	Index  int     `json:"index"`
	ID     *string `json:"id"` // nil: it is locked or invalid
	Key    *string `json:"key"`
	Status string  `json:"status"`          // accepted, filtered, locked (send it again later), invalid
	Others *int    `json:"other_addresses"` // further addresses of the profile
	Errors []Fault `json:"errors"`
}

// NotificationFilter limits a list. ProfileKey and Address need one of the first three.
type NotificationFilter struct {
	CampaignID, FlowID string
	Direct             bool // direct ones only
	Channel            string
	Status             string
	Resolution         string // of orphaned ones: sent, not_sent, or none
	Delivery           string
	Reason             string
	ProfileKey         string
	Address            string
}

// SendNotification sends one message to one recipient. While its key is locked, the error
// is a Problem with the code key_locked.
func (c *Client) SendNotification(ctx context.Context, n NewNotification, options ...CallOption) (SentNotification, error) {
	return call[SentNotification](ctx, c, n, options, http.MethodPost, "/v1/notifications")
}

// SendNotifications sends up to 1,000 messages. One with faults is invalid, and the others
// are stored.
func (c *Client) SendNotifications(ctx context.Context, all []NewNotification, options ...CallOption) (SentNotifications, error) {
	body := struct {
		Notifications []NewNotification `json:"notifications"`
	}{all}
	return call[SentNotifications](ctx, c, body, options, http.MethodPost, "/v1/notifications/bulk")
}

// CancelNotification cancels a direct notification that waits.
func (c *Client) CancelNotification(ctx context.Context, id string, options ...CallOption) (Notification, error) {
	return call[Notification](ctx, c, nil, options, http.MethodPost, "/v1/notifications/%s/cancel", id)
}

// GetNotification reads a notification.
func (c *Client) GetNotification(ctx context.Context, id string, options ...CallOption) (Notification, error) {
	return call[Notification](ctx, c, nil, options, http.MethodGet, "/v1/notifications/%s", id)
}

// ListNotifications reads notifications, those of the newest origin first.
func (c *Client) ListNotifications(ctx context.Context, f NotificationFilter, options ...CallOption) iter.Seq2[Notification, error] {
	fill := func(r *request) {
		for name, value := range map[string]string{"campaign_id": f.CampaignID, "flow_id": f.FlowID, "channel": f.Channel, "status": f.Status,
			"resolution": f.Resolution, "delivery": f.Delivery, "reason": f.Reason, "profile_key": f.ProfileKey, "address": f.Address} {
			r.set(name, value)
		}
		if f.Direct {
			r.set("origin", "direct")
		}
	}
	return each[Notification](ctx, c, fill, options, "/v1/notifications")
}

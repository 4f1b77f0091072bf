package client

import (
	"context"
	"net/http"
	"time"
)

// CurrentWorkspace is the workspace of the API key, and the key.
type CurrentWorkspace struct {
	Workspace Workspace `json:"workspace"`
	Key       APIKey    `json:"key"`

	ETag string `json:"-"` // of the workspace, for IfMatch
}

// Workspace is a tenant.
type Workspace struct {
	ID          string         `json:"id"`
	Name        string         `json:"name"`
	Page        PreferencePage `json:"page"`
	TrackingURL *string        `json:"tracking_url"` // nil: the public URL of the server
	Keys        KeyDefaults    `json:"keys"`
	CreatedAt   time.Time      `json:"created_at"`

	ETag string `json:"-"`
}

// KeyDefaults are the defaults of direct notifications and their keys.
type KeyDefaults struct {
	LockFor  string `json:"lock_for,omitempty"` // ISO 8601
	SealFor  string `json:"seal_for,omitempty"` // ISO 8601
	Strategy string `json:"strategy,omitempty"` // at_most_once, at_least_once
}

// PreferencePage is the page on which recipients unsubscribe. An empty text is the default.
type PreferencePage struct {
	Title            string `json:"title"`
	Text             string `json:"text"`
	UnsubscribeLabel string `json:"unsubscribe_label"`
	Color            string `json:"color"`
	Background       string `json:"background"`
	Language         string `json:"language"`
}

// WorkspacePatch changes a workspace; nil, or an empty default of keys, leaves a field as
// it is.
type WorkspacePatch struct {
	Page        *PreferencePagePatch `json:"page,omitempty"`
	TrackingURL *string              `json:"tracking_url,omitempty"`
	Keys        *KeyDefaults         `json:"keys,omitempty"`
}

// PreferencePagePatch changes a page; nil leaves a text as it is.
type PreferencePagePatch struct {
	Title            *string `json:"title,omitempty"`
	Text             *string `json:"text,omitempty"`
	UnsubscribeLabel *string `json:"unsubscribe_label,omitempty"`
	Color            *string `json:"color,omitempty"`
	Background       *string `json:"background,omitempty"`
	Language         *string `json:"language,omitempty"`
}

// APIKey is a key without its token.
type APIKey struct {
	ID         string     `json:"id"`
	Name       string     `json:"name"`
	Prefix     string     `json:"prefix"` // the first characters of the token
	Scopes     []string   `json:"scopes"`
	Status     string     `json:"status"` // active, revoked
	CreatedAt  time.Time  `json:"created_at"`
	LastUsedAt *time.Time `json:"last_used_at"`
	RevokedAt  *time.Time `json:"revoked_at"`
}

// GetWorkspace reads the workspace of the API key.
func (c *Client) GetWorkspace(ctx context.Context, options ...CallOption) (CurrentWorkspace, error) {
	w, etag, err := tagged[CurrentWorkspace](ctx, c, nil, options, http.MethodGet, "/v1/workspace")
	w.ETag, w.Workspace.ETag = etag, etag
	return w, err
}

// UpdateWorkspace changes the workspace of the API key.
func (c *Client) UpdateWorkspace(ctx context.Context, p WorkspacePatch, options ...CallOption) (Workspace, error) {
	w, etag, err := tagged[Workspace](ctx, c, p, options, http.MethodPatch, "/v1/workspace")
	w.ETag = etag
	return w, err
}

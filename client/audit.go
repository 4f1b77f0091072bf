package client

import (
	"context"
	"iter"
	"time"
)

// AuditRecord is a change of a resource.
type AuditRecord struct {
	ID           string     `json:"id"`
	Actor        AuditActor `json:"actor"`
	Action       string     `json:"action"`        // the operation of openapi.yaml, such as pauseCampaign
	ResourceType string     `json:"resource_type"` // such as campaigns
	ResourceID   *string    `json:"resource_id"`
	RequestID    *string    `json:"request_id"`
	CreatedAt    time.Time  `json:"created_at"`
}

// AuditActor is what made a change.
type AuditActor struct {
	Type     string  `json:"type"` // api_key, cli, link
	APIKeyID *string `json:"api_key_id"`
	Name     *string `json:"name"` // of cli: the user of the machine
}

// AuditFilter selects changes. Empty fields select all.
type AuditFilter struct {
	ActorType, APIKeyID, Action, ResourceType, ResourceID, RequestID string
}

// ListAuditLog lists changes.
func (c *Client) ListAuditLog(ctx context.Context, f AuditFilter, options ...CallOption) iter.Seq2[AuditRecord, error] {
	return each[AuditRecord](ctx, c, func(r *request) {
		r.set("actor_type", f.ActorType)
		r.set("api_key_id", f.APIKeyID)
		r.set("action", f.Action)
		r.set("resource_type", f.ResourceType)
		r.set("resource_id", f.ResourceID)
		r.set("request_id", f.RequestID)
	}, options, "/v1/audit_log")
}

package api

import (
	"context"
	"net/http"
	"slices"

	"github.com/go-chi/chi/v5"

	"lemma"
	"lemma/audit"
	"lemma/client"
)

// unaudited are the tags of operations whose changes are not in the audit log: they have
// records of their own, with the key or the request.
var unaudited = []string{"Events", "Enrollments", "Notifications", "Operations"}

// noChange are operations that change no resource.
var noChange = []string{"testProvider", "testWebhookEndpoint", "resendWebhookMessages"}

// auditedToo are operations of these tags that are recorded all the same.
var auditedToo = []string{"eraseProfile", "resolveNotification"}

// audits reports whether the changes of an operation are recorded.
func audits(e endpoint) bool {
	if slices.Contains(noChange, e.operation.OperationID) {
		return false
	}
	return slices.Contains(auditedToo, e.operation.OperationID) || !slices.Contains(unaudited, e.operation.Tags[0])
}

// audited returns a context in which the first transaction of the request records it.
func (s *server) audited(ctx context.Context, e endpoint, c *call) context.Context {
	if e.operation == nil || !c.writes(e) || !audits(e) { // tests have endpoints without an operation
		return ctx
	}
	of, id := collection(e.path), chi.URLParam(c.request, "id")
	if created, ok := resources[of]; ok && e.method == http.MethodPost && e.path == "/v1/"+of {
		id = lemma.FormatID(created.prefix, c.newID)
	}
	key := c.key.ID
	ctx, _ = audit.With(ctx, audit.Record{WorkspaceID: c.workspace(), ActorType: audit.APIKey, ActorID: &key,
		Action: e.operation.OperationID, ResourceType: of, ResourceID: id, RequestID: requestID(c.request.Context())})
	return ctx
}

func showAudit(r audit.Record) client.AuditRecord {
	return client.AuditRecord{ID: lemma.FormatID(lemma.PrefixAudit, r.ID),
		Actor:  client.AuditActor{Type: r.ActorType, APIKeyID: idOrNull(lemma.PrefixKey, r.ActorID), Name: orNull(r.ActorName)},
		Action: r.Action, ResourceType: r.ResourceType, ResourceID: orNull(r.ResourceID), RequestID: orNull(r.RequestID), CreatedAt: r.At.UTC()}
}

func (s *server) listAuditLog(ctx context.Context, c *call, _ none) (list[client.AuditRecord], error) {
	key, ok := c.filterID("api_key_id", lemma.PrefixKey)
	if !ok {
		return nothing[client.AuditRecord](), nil
	}
	found, next, err := s.Audit.List(ctx, c.workspace(), audit.Filter{ActorType: c.query("actor_type"), ActorID: key,
		Action:       c.query("action"),
		ResourceType: c.query("resource_type"), ResourceID: c.query("resource_id"), RequestID: c.query("request_id")}, c.page())
	return listOf(found, next, err, showAudit)
}

// Package api serves the HTTP API. It guarantees:
//
//   - Every answer matches openapi.yaml.
//   - A refused request changes nothing, and the answer has the pointer of every fault.
//   - A workspace never sees the data of another.
//   - A POST that is repeated under its Idempotency-Key is carried out once.
//   - No answer contains a secret or the details of an internal error.
//
// A handler reads the request, calls one domain package, and renders the result.
package api

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/api/idempotency"
	"lemma/audience"
	"lemma/audit"
	"lemma/campaigns"
	"lemma/direct"
	"lemma/exports"
	"lemma/flows"
	"lemma/flows/query"
	"lemma/hooks"
	"lemma/links"
	"lemma/message"
	"lemma/notifications"
	"lemma/providers"
	"lemma/sender"
	"lemma/slots"
	"lemma/suppression"
	"lemma/webhooks"
	"lemma/workspaces"
)

// Deps are the packages that carry out requests.
type Deps struct {
	Pool       *pgxpool.Pool // idempotency keys
	Workspaces *workspaces.Workspaces
	Providers  *providers.Providers
	Audiences  *audience.Audiences
	Templates  *message.Templates
	Campaigns  *campaigns.Campaigns
	Flows      *flows.Flows
	FlowReader *query.Reader
	Webhooks   *webhooks.Webhooks
	Ledger     *notifications.Ledger
	Direct     *direct.Direct

	Suppressions *suppression.Suppressions
	Sender       *sender.Sender // sends test messages
	Hooks        *hooks.Hooks   // nil: no webhooks of carriers are received
	Links        *links.Links
	Pages        http.Handler // GET and POST /u/{token}; nil: no such path
	Tracking     http.Handler // GET /o/{token} and /c/{token}; nil: no such paths
	Exports      *exports.Exports
	Audit        *audit.Log
}

// Capabilities are the features of a kind of carrier.
type Capabilities struct {
	Events         bool `json:"events"`          // it reports acceptance later
	IdempotencyKey bool `json:"idempotency_key"` // two requests under one key send one message
	Collapse       bool `json:"collapse"`        // a device shows a second delivery in place of the first
	Lookup         bool `json:"lookup"`          // it can answer whether it accepted a message
}

// Options configure the API. All but Capabilities may be left out.
type Options struct {
	Log          *slog.Logger                                       // see BoundedLog
	Metrics      http.Handler                                       // GET /metrics; nil: no such path
	Refused      *Metrics                                           // counts refused requests; nothing is counted when nil
	Ready        func(ctx context.Context) error                    // GET /readyz
	Known        func(ctx context.Context)                          // is called for a request with a valid key; may be nil
	Capabilities func(kind string) Capabilities                     // of a kind of carrier
	Warnings     func(kind string, config json.RawMessage) []string // about a provider's config; none when nil
	Timeout      time.Duration                                      // of one request; 50 s by default
	Connections  int                                                // of the database; those of Pool by default
	Requests     int                                                // of one workspace at a time; 500 by default
	PublicURL    func() string                                      // under which links of messages lead; nil or empty: nowhere
	Now          func() time.Time                                   // for progress; time.Now by default
}

func (o Options) withDefaults() Options {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Ready == nil {
		o.Ready = func(context.Context) error { return nil }
	}
	if o.Capabilities == nil {
		o.Capabilities = func(string) Capabilities { return Capabilities{} }
	}
	if o.Warnings == nil {
		o.Warnings = func(string, json.RawMessage) []string { return nil }
	}
	if o.Timeout <= 0 {
		o.Timeout = 50 * time.Second
	}
	if o.Requests <= 0 {
		o.Requests = 500
	}
	if o.PublicURL == nil {
		o.PublicURL = func() string { return "" }
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

type server struct {
	Deps
	Options
	answers idempotency.Keys
	slots   map[cost]*slots.Slots
}

// New returns the handler of all paths. It panics when the routes and openapi.yaml, which
// are both compiled in, differ.
func New(deps Deps, options Options) http.Handler {
	s := &server{Deps: deps, Options: options.withDefaults(), answers: idempotency.New(deps.Pool)}
	if s.Connections <= 0 && deps.Pool != nil {
		s.Connections = int(deps.Pool.Config().MaxConns)
	}
	s.slots = newSlots(s.Refused, s.Requests, s.Connections)
	r := chi.NewRouter()
	r.Use(outlast, s.identify, s.log, s.recover, middleware.GetHead)
	r.NotFound(s.noRoute)
	r.MethodNotAllowed(s.noMethod(r))
	for _, one := range s.routes() {
		r.Method(one.method, one.path, s.serve(endpoint{one, contract().operation(one)}))
	}
	s.mountOperations(r)
	return r
}

// routes lists the paths of /v1: method, path, scopes, status of success, and action: on, or
// reads for a POST that changes nothing.
func (s *server) routes() []route {
	const get, post, put, patch, del = http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete
	const ok, made, accepted, gone = http.StatusOK, http.StatusCreated, http.StatusAccepted, http.StatusNoContent
	return []route{
		{get, "/v1/workspace", "", ok, on(s.whoAmI)},
		{patch, "/v1/workspace", "workspace:write", ok, on(s.updateWorkspace)},
		{post, "/v1/workspace/link_keys/rotate", "workspace:write", ok, on(s.rotateLinkKey)},

		{get, "/v1/data_sources", "data_sources:read", ok, on(s.listDataSources)},
		{post, "/v1/data_sources", "data_sources:write", made, costly(connects, on(s.createDataSource))},
		{get, "/v1/data_sources/{id}", "data_sources:read", ok, on(s.getDataSource)},
		{patch, "/v1/data_sources/{id}", "data_sources:write", ok, costly(connects, on(s.updateDataSource))},
		{del, "/v1/data_sources/{id}", "data_sources:write", gone, on(s.deleteDataSource)},
		{post, "/v1/data_sources/{id}/test", "data_sources:write", ok, costly(connects, on(s.testDataSource))},
		{get, "/v1/data_sources/{id}/schema", "data_sources:read", ok, costly(queriesSource, on(s.readSchema))},

		{get, "/v1/audiences", "audiences:read", ok, on(s.listAudiences)},
		{post, "/v1/audiences", "audiences:write", made, costly(connects, on(s.createAudience))},
		{post, "/v1/audiences/validate", "audiences:write", ok, costly(queriesSource, reads(s.validateAudience))},
		{get, "/v1/audiences/{id}", "audiences:read", ok, on(s.getAudience)},
		{patch, "/v1/audiences/{id}", "audiences:write", ok, costly(connects, on(s.updateAudience))},
		{del, "/v1/audiences/{id}", "audiences:write", gone, on(s.deleteAudience)},
		{get, "/v1/audiences/{id}/preview", "audiences:query", ok, costly(queriesSource, on(s.previewAudience))},
		{get, "/v1/audiences/{id}/counts", "audiences:query", ok, costly(queriesSource, on(s.countAudience))},

		{get, "/v1/templates", "templates:read", ok, on(s.listTemplates)},
		{post, "/v1/templates", "templates:write", made, costly(renders, on(s.createTemplate))},
		{post, "/v1/templates/validate", "templates:read", ok, costly(renders, reads(s.validateTemplate))},
		{get, "/v1/templates/{id}", "templates:read", ok, on(s.getTemplate)},
		{patch, "/v1/templates/{id}", "templates:write", ok, on(s.updateTemplate)},
		{del, "/v1/templates/{id}", "templates:write", gone, on(s.deleteTemplate)},
		{get, "/v1/templates/{id}/versions", "templates:read", ok, on(s.listVersions)},
		{post, "/v1/templates/{id}/versions", "templates:write", made, costly(renders, on(s.createVersion))},
		{get, "/v1/templates/{id}/versions/{n}", "templates:read", ok, on(s.getVersion)},
		{post, "/v1/templates/{id}/render", "templates:read", ok, costly(previews, reads(s.renderTemplate))},

		{get, "/v1/providers", "providers:read", ok, on(s.listProviders)},
		{post, "/v1/providers", "providers:write", made, on(s.createProvider)},
		{get, "/v1/providers/{id}", "providers:read", ok, on(s.getProvider)},
		{patch, "/v1/providers/{id}", "providers:write", ok, on(s.updateProvider)},
		{del, "/v1/providers/{id}", "providers:write", gone, on(s.deleteProvider)},
		{post, "/v1/providers/{id}/test", "providers:test", ok, costly(connects, on(s.testProvider))},

		{get, "/v1/suppressions", "suppressions:read", ok, on(s.listSuppressions)},
		{post, "/v1/suppressions", "suppressions:write", made, on(s.createSuppression)},
		{post, "/v1/suppressions/import", "suppressions:write", ok, upload(s.importSuppressions)},
		{get, "/v1/suppressions/export", "suppressions:read", ok, on(s.exportSuppressions)},
		{get, "/v1/suppressions/{id}", "suppressions:read", ok, on(s.getSuppression)},
		{del, "/v1/suppressions/{id}", "suppressions:write", gone, on(s.deleteSuppression)},
		{get, "/v1/topics", "suppressions:read", ok, on(s.listTopics)},
		{post, "/v1/topics", "suppressions:write", made, on(s.createTopic)},
		{get, "/v1/topics/{id}", "suppressions:read", ok, on(s.getTopic)},
		{patch, "/v1/topics/{id}", "suppressions:write", ok, on(s.updateTopic)},
		{del, "/v1/topics/{id}", "suppressions:write", gone, on(s.deleteTopic)},
		{get, "/v1/preferences", "suppressions:read", ok, on(s.readPreferences)},
		{put, "/v1/preferences", "suppressions:write", ok, on(s.setPreference)},

		{get, "/v1/campaigns", "campaigns:read", ok, on(s.listCampaigns)},
		{post, "/v1/campaigns", "campaigns:write", made, costly(connects, on(s.createCampaign))},
		{get, "/v1/campaigns/{id}", "campaigns:read", ok, on(s.getCampaign)},
		{patch, "/v1/campaigns/{id}", "campaigns:write", ok, costly(connects, on(s.updateCampaign))},
		{del, "/v1/campaigns/{id}", "campaigns:write", gone, on(s.deleteCampaign)},
		{post, "/v1/campaigns/{id}/send", "campaigns:send", accepted, costly(dryRunPreviews, on(s.sendCampaign))},
		{post, "/v1/campaigns/{id}/schedule", "campaigns:send", accepted, on(s.scheduleCampaign)},
		{post, "/v1/campaigns/{id}/unschedule", "campaigns:send", accepted, on(s.unscheduleCampaign)},
		{post, "/v1/campaigns/{id}/pause", "campaigns:send", accepted, on(s.pauseCampaign)},
		{post, "/v1/campaigns/{id}/resume", "campaigns:send", accepted, on(s.resumeCampaign)},
		{post, "/v1/campaigns/{id}/cancel", "campaigns:send", accepted, on(s.cancelCampaign)},
		{get, "/v1/campaigns/{id}/links", "campaigns:read", ok, on(s.listLinks)},
		{get, "/v1/campaigns/{id}/preview", "campaigns:read audiences:query", ok, costly(previews, on(s.previewCampaign))},

		{get, "/v1/iterations", "campaigns:read", ok, on(s.listIterations)},
		{get, "/v1/iterations/{id}", "campaigns:read", ok, on(s.getIteration)},
		{get, "/v1/iterations/{id}/results", "campaigns:read", ok, on(s.readResults)},
		{get, "/v1/iterations/{id}/assignment", "campaigns:read", ok, on(s.readAssignment)},
		{post, "/v1/iterations/{id}/select_winner", "campaigns:send", accepted, on(s.selectWinner)},
		{post, "/v1/iterations/{id}/stop", "campaigns:send", accepted, on(s.stopIteration)},
		{post, "/v1/iterations/{id}/extend", "campaigns:send", accepted, on(s.extendIteration)},
		{post, "/v1/iterations/power", "campaigns:read", ok, reads(s.computePower)},

		{get, "/v1/flows", "flows:read", ok, on(s.listFlows)},
		{post, "/v1/flows", "flows:write", made, costly(renders, on(s.createFlow))},
		{get, "/v1/flows/{id}", "flows:read", ok, on(s.getFlow)},
		{patch, "/v1/flows/{id}", "flows:write", ok, on(s.updateFlow)},
		{del, "/v1/flows/{id}", "flows:write", gone, on(s.deleteFlow)},
		{get, "/v1/flows/{id}/versions", "flows:read", ok, on(s.listFlowVersions)},
		{post, "/v1/flows/{id}/versions", "flows:write", made, costly(renders, on(s.createFlowVersion))},
		{get, "/v1/flows/{id}/versions/{n}", "flows:read", ok, on(s.getFlowVersion)},
		{put, "/v1/flows/{id}/versions/{n}", "flows:write", ok, costly(renders, on(s.updateFlowVersion))},
		{del, "/v1/flows/{id}/versions/{n}", "flows:write", gone, on(s.deleteFlowVersion)},
		{get, "/v1/flows/{id}/versions/{n}/validate", "flows:read", ok, costly(previews, on(s.validateFlowVersion))},
		{post, "/v1/flows/{id}/versions/{n}/plan", "flows:read", ok, costly(previews, reads(s.planFlowVersion))},
		{post, "/v1/flows/{id}/versions/{n}/publish", "flows:publish", accepted, costly(previews, on(s.publishFlowVersion))},
		{post, "/v1/flows/{id}/versions/{n}/simulate", "flows:read audiences:query", ok, costly(previews, reads(s.simulateFlowVersion))},
		{get, "/v1/flows/{id}/diff", "flows:read", ok, costly(renders, on(s.diffFlowVersions))},
		{post, "/v1/flows/{id}/rollback", "flows:publish", accepted, costly(previews, on(s.rollbackFlow))},
		{post, "/v1/flows/{id}/pause", "flows:publish", accepted, on(s.pauseFlow)},
		{post, "/v1/flows/{id}/resume", "flows:publish", accepted, on(s.resumeFlow)},
		{post, "/v1/flows/{id}/drain", "flows:publish", accepted, on(s.drainFlow)},
		{post, "/v1/flows/{id}/archive", "flows:publish", accepted, on(s.archiveFlow)},
		{get, "/v1/flows/{id}/history", "flows:read", ok, on(s.readFlowHistory)},
		{get, "/v1/flows/{id}/counts", "flows:read", ok, on(s.countFlow)},
		{get, "/v1/flows/{id}/refusals", "flows:read enrollments:read", ok, on(s.listRefusals)},
		{get, "/v1/flows/{id}/explain", "flows:read enrollments:read events:read", ok, costly(previews, on(s.explainFlow))},

		{get, "/v1/flows/{id}/enrollments", "enrollments:read", ok, on(s.listEnrollmentsOfFlow)},
		{post, "/v1/flows/{id}/enrollments", "enrollments:write", made, costly(gathered, on(s.enroll))},
		{post, "/v1/flows/{id}/enrollments/bulk", "enrollments:write", ok, costly(gathered, on(s.enrollBulk))},
		{get, "/v1/enrollments", "enrollments:read", ok, on(s.listEnrollments)},
		{get, "/v1/enrollments/{id}", "enrollments:read", ok, on(s.getEnrollment)},
		{get, "/v1/enrollments/{id}/history", "enrollments:read", ok, on(s.readEnrollmentHistory)},
		{post, "/v1/enrollments/{id}/exit", "enrollments:write", ok, on(s.exitEnrollment)},
		{post, "/v1/enrollments/{id}/move", "enrollments:write", ok, on(s.moveEnrollment)},
		{post, "/v1/profiles/erase", "profiles:erase", ok, on(s.eraseProfile)},

		{get, "/v1/events", "events:read", ok, on(s.listEvents)},
		{post, "/v1/events", "events:write", accepted, costly(gathered, repeatable(on(s.recordEvent), hasEventID))},
		{post, "/v1/events/bulk", "events:write", accepted, costly(gathered, repeatable(on(s.recordEvents), haveEventIDs))},
		{get, "/v1/events/{id}", "events:read", ok, on(s.getEvent)},

		{get, "/v1/webhook_endpoints", "webhooks:read", ok, on(s.listEndpoints)},
		{post, "/v1/webhook_endpoints", "webhooks:write", made, on(s.createEndpoint)},
		{get, "/v1/webhook_endpoints/{id}", "webhooks:read", ok, on(s.getEndpoint)},
		{patch, "/v1/webhook_endpoints/{id}", "webhooks:write", ok, on(s.updateEndpoint)},
		{del, "/v1/webhook_endpoints/{id}", "webhooks:write", gone, on(s.deleteEndpoint)},
		{get, "/v1/webhook_endpoints/{id}/messages", "webhooks:read", ok, on(s.listMessages)},
		{post, "/v1/webhook_endpoints/{id}/rotate", "webhooks:write", ok, on(s.rotateEndpoint)},
		{post, "/v1/webhook_endpoints/{id}/resend", "webhooks:write", ok, on(s.resendMessages)},
		{post, "/v1/webhook_endpoints/{id}/test", "webhooks:write", accepted, on(s.testEndpoint)},
		{get, "/v1/events_out/{id}", "webhooks:read", ok, on(s.getEventOut)},

		{get, "/v1/notifications", "notifications:read", ok, on(s.listNotifications)},
		{post, "/v1/notifications", "notifications:send", accepted, costly(gathered, repeatable(on(s.sendNotification), hasKey))},
		{post, "/v1/notifications/bulk", "notifications:send", accepted, costly(gathered, repeatable(on(s.sendNotifications), haveKeys))},
		{get, "/v1/notifications/{id}", "notifications:read", ok, on(s.getNotification)},
		{get, "/v1/notifications/{id}/explain", "notifications:read", ok, on(s.explainNotification)},
		{post, "/v1/notifications/{id}/cancel", "notifications:send", ok, on(s.cancelNotification)},
		{post, "/v1/notifications/{id}/resolve", "notifications:resolve", ok, on(s.resolveNotification)},

		{get, "/v1/exports", "exports:read", ok, on(s.listExports)},
		{post, "/v1/exports", "exports:write", accepted, on(s.createExport)},
		{get, "/v1/exports/{id}", "exports:read", ok, on(s.getExport)},
		{post, "/v1/exports/{id}/cancel", "exports:write", ok, on(s.cancelExport)},
		{del, "/v1/exports/{id}", "exports:write", gone, on(s.deleteExport)},

		{get, "/v1/audit_log", "audit:read", ok, on(s.listAuditLog)},

		{get, "/v1/api_keys", "keys:read", ok, on(s.listKeys)},
		{post, "/v1/api_keys", "keys:write", made, on(s.createKey)},
		{get, "/v1/api_keys/{id}", "keys:read", ok, on(s.getKey)},
		{del, "/v1/api_keys/{id}", "keys:write", gone, on(s.revokeKey)},
	}
}

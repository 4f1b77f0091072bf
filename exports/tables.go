package exports

import (
	"slices"

	"lemma"
	"lemma/exports/format"
)

var campaignID, flowID = id("campaign_id", lemma.PrefixCampaign), id("flow_id", lemma.PrefixFlow)

var enrollmentID = id("enrollment_id", lemma.PrefixEnrollment)

// types are the types of rows.
var types = map[string]rowType{
	"notifications": {
		scope: "notifications:read", created: "n.created_at",
		filters: map[string]string{"campaign_id": "n.origin_id = ?", "flow_id": "c.flow_id = ?", "status": "o.status = ?",
			"channel": "c.channel = ?", "profile_key": "n.profile_key = ?", "created_after": "n.created_at >= ?",
			"created_before": "n.created_at < ?"},
		values: map[string]string{"status": "pending processing sent failed orphaned skipped cancelled"},
		columns: slices.Concat(of(format.Notification, "id"), []format.Column{campaignID, flowID, enrollmentID}, texts("node", "channel",
			"profile_key", "address", "status", "reason"), of(format.Int, "attempts", "code"), texts("carrier_id", "detail", "delivery"),
			of(format.Time, "created_at", "ended_at", "delivery_at")),
		parts: []part{{sql: sentNotifications}, {keys: []string{"origin_id", "key"}, sql: skippedNotifications}},
	},
	"attempts": {
		scope: "notifications:read", created: "n.at",
		filters: map[string]string{"campaign_id": "p.origin_id = ?", "outcome": "n.outcome = ?", "profile_key": "n.profile_key = ?",
			"created_after": "n.at >= ?", "created_before": "n.at < ?"},
		values: map[string]string{"outcome": "accepted rejected refused unknown skipped"},
		columns: slices.Concat(of(format.Notification, "notification_id"), []format.Column{campaignID, enrollmentID}, texts("profile_key"),
			of(format.Int, "attempt"), texts("outcome"), of(format.Bool, "final"), texts("basis", "reason"), of(format.Int, "code"),
			texts("carrier_id", "detail"), of(format.Time, "created_at")),
		parts: []part{{sql: attemptsOfBatches}},
	},
	"enrollments": {
		scope: "enrollments:read", created: "n.enrolled_at",
		filters: map[string]string{"flow_id": "n.flow_id = ?", "status": "n.status = ?", "profile_key": "n.profile_key = ?",
			"created_after": "n.enrolled_at >= ?", "created_before": "n.enrolled_at < ?"},
		values: map[string]string{"status": "active completed exited refused"}, // active: also those that wait
		columns: slices.Concat([]format.Column{id("id", lemma.PrefixEnrollment), flowID}, of(format.Int, "version"), texts("profile_key",
			"status", "node"), of(format.Int, "step"), texts("source", "exit_reason", "blocked_reason"),
			of(format.Time, "created_at", "resume_at", "ended_at")),
		parts: []part{{keys: []string{"id"}, sql: `
			select {keep}, n.id, n.flow_id, n.version, n.profile_key, n.status, n.node, n.step, n.source, n.exit_reason, n.blocked_reason,
				n.enrolled_at, n.resume_at, n.ended_at, n.id
			from enrollments n where n.workspace_id = $1 and {after} order by n.id limit {limit}`}},
	},
	"events": {
		scope: "events:read", created: "n.received_at",
		filters: map[string]string{"name": "n.name = ?", "profile_key": "n.profile_key = ?", "created_after": "n.received_at >= ?",
			"created_before": "n.received_at < ?"},
		columns: slices.Concat([]format.Column{id("id", lemma.PrefixEvent)}, texts("source_id", "name", "profile_key"),
			of(format.JSON, "properties"), of(format.Time, "occurred_at", "received_at")),
		parts: []part{{keys: []string{"key"}, sql: `
			select n.name <> '' and {keep}, n.key, n.source_id, n.name, n.profile_key, n.properties, n.occurred_at, n.received_at, n.key
			from trigger_events n where n.workspace_id = $1 and {after} order by n.key limit {limit}`}},
	},
	"refusals": {
		scope: "enrollments:read", created: "n.at",
		filters: map[string]string{"flow_id": "n.flow_id = ?", "reason": "n.reason = ?", "profile_key": "n.profile_key = ?",
			"created_after": "n.at >= ?", "created_before": "n.at < ?"},
		columns: slices.Concat([]format.Column{flowID}, texts("profile_key", "reason", "detail", "source"),
			[]format.Column{id("event_id", lemma.PrefixEvent), enrollmentID}, of(format.Time, "created_at")),
		parts: []part{{keys: []string{"flow_id", "key"}, sql: `
			select {keep}, n.flow_id, n.profile_key, n.reason, n.detail, n.source, n.event_key, n.enrollment_id, n.at, n.flow_id, n.key
			from refusals n where n.workspace_id = $1 and {after} order by n.flow_id, n.key limit {limit}`}},
	},
	"audit_log": {
		scope: "audit:read", created: "n.at",
		filters: map[string]string{"created_after": "n.at >= ?", "created_before": "n.at < ?"},
		columns: slices.Concat([]format.Column{id("id", lemma.PrefixAudit)}, texts("actor_type"),
			[]format.Column{id("api_key_id", lemma.PrefixKey)}, texts("actor_name", "action", "resource_type", "resource_id", "request_id"),
			of(format.Time, "created_at")),
		parts: []part{{keys: []string{"id"}, sql: `
			select {keep}, n.id, n.actor_type, n.actor_id, n.actor_name, n.action, n.resource_type, n.resource_id, n.request_id, n.at, n.id
			from audit_log n where n.workspace_id = $1 and {after} order by n.id limit {limit}`}},
	},
	"suppressions": {
		scope: "suppressions:read", created: "n.created_at",
		filters: map[string]string{"channel": "n.channel = ?", "cause": "n.cause = ?", "created_after": "n.created_at >= ?",
			"created_before": "n.created_at < ?"},
		columns: slices.Concat([]format.Column{id("id", lemma.PrefixSuppression)}, texts("channel", "address", "cause", "detail"),
			of(format.Time, "created_at")),
		parts: []part{{keys: []string{"id"}, sql: `
			select n.address <> '' and {keep}, n.id, n.channel, n.address, n.cause, n.detail, n.created_at, n.id
			from suppressions n where n.workspace_id = $1 and {after} order by n.id limit {limit}`}},
	},
}

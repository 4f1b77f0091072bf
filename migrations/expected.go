package migrations

import "slices"

// want is a constraint or a unique index that must exist.
type want struct {
	table, name string
	promise     string
	// definition is what Postgres prints (pg_get_constraintdef, or
	// pg_get_indexdef after USING), followed by NULLABLE and the columns that
	// may be null, since null satisfies a check.
	definition string
}

// expected lists the constraints and unique indexes that guard the promises. A
// migration that changes one changes this list.
var expected = []want{
	{"notifications", "notifications_pkey", "Campaign!AtMostOneNotificationPerRecipient, FlowEngine!AtMostOneNotificationPerNode",
		`PRIMARY KEY (workspace_id, origin_id, key)`},
	{"notifications", "notifications_place", "Campaign!CountsBalance",
		`CHECK ((((skip_reason IS NULL) AND (batch_id IS NOT NULL) AND (ordinal IS NOT NULL) AND (address IS NOT NULL)) ` +
			`OR ((skip_reason IS NOT NULL) AND (batch_id IS NULL) AND (ordinal IS NULL)))) ` +
			`NULLABLE address, batch_id, ordinal, skip_reason`},
	{"notifications", "notifications_skip_reason", "skip reasons are a closed list",
		`CHECK ((skip_reason = ANY (ARRAY['missing_address'::text, 'invalid_address'::text, 'duplicate_address'::text, ` +
			`'too_many_addresses'::text, 'row_too_large'::text, 'unsubscribed'::text, 'invalid_key'::text, ` +
			`'holdout'::text]))) NULLABLE skip_reason`},

	{"opt_outs", "opt_outs_pkey", "an opt-out is marked once",
		`PRIMARY KEY (workspace_id, origin_id, id)`},

	{"suppressions", "suppressions_pkey", "a suppression is stored once",
		`PRIMARY KEY (workspace_id, key, cause)`},
	{"suppressions", "suppressions_cause", "causes of suppressions are a closed list",
		`CHECK ((cause = ANY (ARRAY['hard_bounce'::text, 'soft_bounces'::text, 'complaint'::text, 'token_unregistered'::text, ` +
			`'unsubscribed'::text, 'manual'::text])))`},
	{"topic_unsubscribes", "topic_unsubscribes_pkey", "a recipient unsubscribes from a topic once",
		`PRIMARY KEY (workspace_id, topic_id, key)`},
	{"suppression_filters", "suppression_filters_pkey", "a filter of suppressions has each part once",
		`PRIMARY KEY (workspace_id, part)`},
	{"link_keys", "link_keys_pkey", "a number of a link key has one secret",
		`PRIMARY KEY (workspace_id, number)`},

	{"audit_log", "audit_log_pkey", "a change is recorded once", `PRIMARY KEY (workspace_id, id)`},
	{"audit_log", "audit_log_append_only", "rows of the audit log do not change", `TRIGGER audit_log_append_only`},
	{"blobs", "blobs_pkey", "SideEffects!CommittedOnce", `PRIMARY KEY (workspace_id, id)`},
	{"blobs", "blobs_name", "SideEffects!PublishedIsTheCommitted", `UNIQUE (workspace_id, name)`},
	{"blobs", "blobs_lease", "SideEffects!CommittedIsKept",
		`CHECK ((((status = 'registered'::text) = (leased_by IS NOT NULL)) AND ((leased_by IS NULL) = (lease_until IS NULL)))) ` +
			`NULLABLE lease_until, leased_by`},
	{"blobs", "blobs_content", "SideEffects!PublishedIsTheCommitted",
		`CHECK (((status <> ALL (ARRAY['committed'::text, 'published'::text])) OR ((bytes IS NOT NULL) AND (sha256 IS NOT NULL)))) ` +
			`NULLABLE bytes, sha256`},
	{"blobs", "blobs_status", "the statuses of content are a closed list",
		`CHECK ((status = ANY (ARRAY['registered'::text, 'committed'::text, 'published'::text, 'ended'::text])))`},
	{"blobs", "blobs_ended", "content that has ended is cleaned",
		`CHECK ((((status = 'ended'::text) = (ended_at IS NOT NULL)) AND ((ended_at IS NULL) = (clean_at IS NULL)))) ` +
			`NULLABLE clean_at, ended_at`},
	{"blobs", "blobs_committed", "SideEffects!CommittedOnce",
		`UNIQUE USING btree (workspace_id, owner_id) WHERE (status = ANY (ARRAY['committed'::text, 'published'::text]))`},
	{"blobs", "blobs_registered", "SideEffects!CommittedOnce",
		`UNIQUE USING btree (workspace_id, owner_id) WHERE (status = 'registered'::text)`},

	{"releases", "releases_pkey", "one process at a time opens the batches of an origin",
		`PRIMARY KEY (workspace_id, origin_id)`},
	{"batches", "batches_pkey", "SendingEngine!OnlyOwnerCommits",
		`PRIMARY KEY (workspace_id, origin_id, id)`},
	{"batches", "batches_attempt", "SendingEngine!BoundedSendCount, SendingEngine!AtMostOnceStrategy",
		`CHECK (((attempt >= 1) AND (attempt <= max_attempts) AND (max_attempts <= 2)))`},
	{"batches", "batches_lease", "SendingEngine!OnlyOwnerCommits",
		`CHECK ((((status = 'leased'::text) = (leased_by IS NOT NULL)) AND ((leased_by IS NULL) = (lease_until IS NULL)))) ` +
			`NULLABLE lease_until, leased_by`},
	{"batches", "batches_root", "Batch!OneRowPerOrdinal",
		`CHECK ((((root_id = id) AND (attempt = 1) AND (members IS NULL)) ` +
			`OR ((root_id <> id) AND (open IS NOT NULL) AND (members IS NOT NULL)))) NULLABLE members, open`},
	{"batches", "batches_counts", "Campaign!CountsBalance",
		`CHECK ((((((((sent + failed) + orphaned) + skipped) + cancelled) + retried) + calling) <= size))`},
	{"batches", "batches_end", "Batch!NoRowLeftBehind",
		`CHECK (((status = ANY (ARRAY['ready'::text, 'leased'::text])) ` +
			`OR ((((((sent + failed) + orphaned) + skipped) + cancelled) + retried) = size)))`},
	{"batches", "batches_status", "the statuses of a batch are a closed list",
		`CHECK ((status = ANY (ARRAY['ready'::text, 'leased'::text, 'done'::text, 'cancelled'::text, 'expired'::text])))`},
	{"batches", "batches_gate", "the gates of a batch are a closed list",
		`CHECK ((gate = ANY (ARRAY['open'::text, 'held'::text, 'cancelled'::text])))`},

	{"provider_meters", "provider_meters_circuit", "an open circuit has a next probe, and one probe at a time",
		`CHECK ((((opened_at IS NULL) = (open_until IS NULL)) AND ((opened_at IS NOT NULL) OR (probe_token IS NULL)) ` +
			`AND ((probe_token IS NULL) = (probe_until IS NULL)))) NULLABLE open_until, opened_at, probe_token, probe_until`},

	{"attempts", "attempts_pkey", "SendingEngine!OneOutcomePerAttempt, Batch!OneRowPerOrdinal",
		`PRIMARY KEY (workspace_id, batch_id, ordinal, attempt)`},
	{"attempts", "attempts_bound", "SendingEngine!BoundedSendCount",
		`CHECK (((attempt >= 1) AND (attempt <= 2)))`},
	{"attempts", "attempts_final", "SendingEngine!TerminalStable",
		`CHECK ((final OR ((outcome = 'unknown'::text) AND (attempt = 1))))`},
	{"attempts", "attempts_outcome", "outcomes are a closed list",
		`CHECK ((outcome = ANY (ARRAY['accepted'::text, 'rejected'::text, 'refused'::text, 'unknown'::text, 'skipped'::text])))`},
	{"attempts", "attempts_basis", "sources of outcomes are a closed list",
		`CHECK ((basis = ANY (ARRAY['response'::text, 'evidence'::text, 'reaper'::text, 'gate'::text])))`},

	{"provider_events", "provider_events_once", "ProviderEvents!AppliedOnce",
		`UNIQUE USING btree (workspace_id, origin_id, provider_id, source, source_event_id) WHERE (source_event_id <> 'unknown'::text)`},
	{"provider_events", "provider_events_kind", "kinds of evidence are a closed list",
		`CHECK ((kind = ANY (ARRAY['accepted'::text, 'rejected'::text, 'deferred'::text])))`},
	{"provider_events", "provider_events_type", "types of reports are a closed list",
		`CHECK ((type = ANY (ARRAY['accepted'::text, 'rejected'::text, 'deferred'::text, 'delayed'::text, 'delivered'::text, ` +
			`'bounced'::text, 'soft_bounced'::text, 'undelivered'::text, 'complained'::text, 'opened'::text, 'clicked'::text, ` +
			`'unsubscribed'::text]))) NULLABLE type`},
	{"event_queue", "event_queue_pkey", "ProviderEvents!EveryEventApplied",
		`PRIMARY KEY (workspace_id, id)`},
	{"deliveries", "deliveries_pkey", "ProviderEvents!RankOnlyRises",
		`PRIMARY KEY (workspace_id, origin_id, key)`},
	{"deliveries", "deliveries_rank", "ProviderEvents!RankOnlyRises",
		`CHECK (((rank > 0) AND (rank = COALESCE(array_position(ARRAY['delayed'::text, 'rejected'::text, 'undelivered'::text, ` +
			`'delivered'::text, 'bounced'::text, 'complained'::text], state), 0))))`},
	{"delivery_counts", "delivery_counts_pkey", "a delivery state is counted once",
		`PRIMARY KEY (workspace_id, origin_id, content_id, state)`},
	{"delivery_counts", "delivery_counts_positive", "a delivery state is counted once",
		`CHECK ((count >= 0))`},
	{"tracking_queue", "tracking_queue_pkey", "an open or click is counted once",
		`PRIMARY KEY (workspace_id, origin_id, key, id)`},
	{"tracking_events", "tracking_events_pkey", "an open or click is counted once",
		`PRIMARY KEY (workspace_id, origin_id, key, id)`},
	{"engagements", "engagements_pkey", "a notification is counted once as opened, clicked, converted and unsubscribed",
		`PRIMARY KEY (workspace_id, origin_id, key)`},
	{"engagement_counts", "engagement_counts_pkey", "an open or click is counted once",
		`PRIMARY KEY (workspace_id, origin_id, content_id)`},
	{"engagement_counts", "engagement_counts_unique", "a notification is counted once as opened, clicked, converted and unsubscribed",
		`CHECK (((unique_opens >= 0) AND (unique_opens <= opens) AND (unique_clicks >= 0) AND (unique_clicks <= clicks)))`},
	{"conversion_queue", "conversion_queue_pkey", "a conversion is counted once",
		`PRIMARY KEY (workspace_id, received_at, key)`},
	{"settlement_queue", "settlement_queue_pkey", "a conversion is counted once",
		`PRIMARY KEY (workspace_id, settled_at, batch_id, ordinal)`},
	{"conversion_positions", "conversion_positions_pkey", "a conversion is counted once",
		`PRIMARY KEY (queue)`},
	{"link_counts", "link_counts_pkey", "an open or click is counted once",
		`PRIMARY KEY (workspace_id, origin_id, content_id, link)`},
	{"provider_watermarks", "provider_watermarks_pkey", "SendingEngine!SingleSendUnderAssumptions",
		`PRIMARY KEY (workspace_id, provider_id)`},
	{"soft_bounces", "soft_bounces_pkey", "a soft bounce is counted once",
		`PRIMARY KEY (workspace_id, key)`},
	{"resolutions", "resolutions_pkey", "the first resolution of an orphaned notification is final",
		`PRIMARY KEY (workspace_id, origin_id, key)`},
	{"resolutions", "resolutions_resolution_check", "resolutions are a closed list",
		`CHECK ((resolution = ANY (ARRAY['sent'::text, 'not_sent'::text])))`},
	{"fanout_chunks", "fanout_chunks_pkey", "Campaign!CountsBalance",
		`PRIMARY KEY (workspace_id, origin_id, id)`},
	{"contents", "contents_pkey", "two attempts send the same bytes",
		`PRIMARY KEY (workspace_id, id)`},

	{"campaigns", "campaigns_pkey", "a repeated request makes one campaign",
		`PRIMARY KEY (workspace_id, id)`},
	{"campaigns", "campaigns_status", "the statuses of a campaign are a closed list",
		`CHECK ((status = ANY (ARRAY['draft'::text, 'scheduled'::text, 'preparing'::text, 'sending'::text, ` +
			`'paused'::text, 'completed'::text, 'cancelled'::text, 'failed'::text])))`},
	{"campaigns", "campaigns_scheduled", "a scheduled campaign is due at some time",
		`CHECK (((status <> 'scheduled'::text) OR (scheduled_at IS NOT NULL))) NULLABLE scheduled_at`},
	{"campaigns", "campaigns_strategy_check", "the strategies are a closed list",
		`CHECK ((strategy = ANY (ARRAY['at_least_once'::text, 'at_most_once'::text])))`},
	{"campaigns", "campaigns_topic", "a transactional campaign has no topic",
		`CHECK (((topic_id IS NULL) OR (NOT transactional))) NULLABLE topic_id`},
	{"campaign_requests", "campaign_requests_pkey", "a repeated request has one effect",
		`PRIMARY KEY (workspace_id, campaign_id, id)`},
	{"fanouts", "fanouts_pkey", "a campaign has one fan-out",
		`PRIMARY KEY (workspace_id, campaign_id)`},
	{"fanouts", "fanouts_lease", "a fan-out is leased exactly while it has a holder",
		`CHECK (((leased_by IS NULL) = (lease_until IS NULL))) NULLABLE lease_until, leased_by`},
	{"iterations", "iterations_pkey", "an experiment is one row",
		`PRIMARY KEY (workspace_id, id)`},
	{"iterations", "iterations_campaign", "a campaign has one experiment",
		`UNIQUE (workspace_id, campaign_id)`},
	{"iterations", "iterations_status", "the statuses of an iteration are a closed list",
		`CHECK ((status = ANY (ARRAY['draft'::text, 'sampling'::text, 'running'::text, 'evaluating'::text, 'inconclusive'::text, ` +
			`'decided'::text, 'rolling_out'::text, 'completed'::text, 'cancelled'::text])))`},
	{"iterations", "iterations_claim", "CampaignIteration!WinnerOnce",
		`CHECK ((((evaluating_by IS NULL) = (evaluating_until IS NULL)) ` +
			`AND ((evaluating_by IS NULL) OR (status = ANY (ARRAY['sampling'::text, 'running'::text, 'evaluating'::text, ` +
			`'inconclusive'::text]))))) ` +
			`NULLABLE evaluating_by, evaluating_until`},
	{"iterations", "iterations_decided", "CampaignIteration!RolloutIsRecorded",
		`CHECK ((((winner IS NULL) = (decided_by IS NULL)) AND ((winner IS NULL) = (decided_at IS NULL)) ` +
			`AND ((winner IS NULL) = (rollout_id IS NULL)) ` +
			`AND ((winner IS NOT NULL) OR (status <> ALL (ARRAY['decided'::text, 'rolling_out'::text]))) ` +
			`AND ((winner IS NULL) OR (status = ANY (ARRAY['decided'::text, 'rolling_out'::text, 'completed'::text, 'cancelled'::text]))))) ` +
			`NULLABLE decided_at, decided_by, rollout_id, winner`},
	{"iterations", "iterations_extensions", "an iteration is extended at most 100 times",
		`CHECK (((extensions >= 0) AND (extensions <= 100)))`},
	{"iterations", "iterations_forward", "CampaignIteration!OnlyForward",
		`TRIGGER iterations_forward`},
	{"iterations", "iterations_winner", "CampaignIteration!WinnerCompeted",
		`FOREIGN KEY (workspace_id, id, winner) REFERENCES iteration_variants(workspace_id, iteration_id, ordinal) NULLABLE winner`},
	{"template_versions", "template_versions_pkey", "two attempts send the same bytes",
		`PRIMARY KEY (workspace_id, template_id, version)`},
	{"template_versions", "template_versions_request", "a repeated request makes one version",
		`UNIQUE (workspace_id, template_id, request) NULLABLE request`},
	{"provider_meters", "provider_meters_pkey", "all processes share one rate",
		`PRIMARY KEY (workspace_id, provider_id)`},

	{"enrollments", "enrollments_pkey", "FlowEngine!EachStepOnce",
		`PRIMARY KEY (workspace_id, id)`},
	{"enrollment_keys", "enrollment_keys_once", "FlowEngine!OneEnrollmentPerKey",
		`PRIMARY KEY (flow_id, uniqueness_key, workspace_id)`},
	{"enrollments", "enrollments_active", "FlowEngine!AtMostOneActiveEnrollment",
		`UNIQUE USING btree (workspace_id, profile_key, flow_id, overlap_key) WHERE (status = 'active'::text)`},
	{"enrollments", "enrollments_due", "WaitResume!DueLeadsToResumed",
		`CHECK (((status = 'active'::text) = (resume_at IS NOT NULL))) NULLABLE resume_at`},
	{"enrollments", "enrollments_ended", "an enrollment has an end exactly when it is not active",
		`CHECK (((status = 'active'::text) = (ended_at IS NULL))) NULLABLE ended_at`},
	{"enrollments", "enrollments_status", "the statuses of an enrollment are a closed list",
		`CHECK ((status = ANY (ARRAY['active'::text, 'completed'::text, 'exited'::text, 'refused'::text])))`},
	{"enrollments", "enrollments_source", "the sources of enrollments are a closed list",
		`CHECK ((source = ANY (ARRAY['event'::text, 'audience'::text, 'direct'::text])))`},
	{"enrollment_steps", "enrollment_steps_pkey", "FlowEngine!EachStepOnce",
		`PRIMARY KEY (workspace_id, enrollment_id, step)`},
	{"trigger_events", "trigger_events_once", "a repeated event is recorded once",
		`PRIMARY KEY (workspace_id, key)`},
	{"refusals", "refusals_pkey", "a repeated trigger is refused once",
		`PRIMARY KEY (workspace_id, flow_id, key)`},
	{"refusals", "refusals_reason", "reasons of refusals are a closed list",
		`CHECK ((reason = ANY (ARRAY['already_enrolled'::text, 'already_active'::text, 'filtered'::text, 'condition_error'::text, ` +
			`'paused'::text, 'not_live'::text, 'no_profile'::text, 'missing_field'::text, 'too_many_active'::text])))`},
	{"flows", "flows_status", "the statuses of a flow are a closed list",
		`CHECK ((status = ANY (ARRAY['draft'::text, 'live'::text, 'paused'::text, 'draining'::text, 'archived'::text])))`},
	{"flow_versions", "flow_versions_pkey", "FlowEngine!PublishMovesNoEnrollment",
		`PRIMARY KEY (workspace_id, flow_id, version)`},
	{"flow_versions", "flow_versions_request", "a repeated request makes one version",
		`UNIQUE (workspace_id, flow_id, request)`},
	{"flow_log", "flow_log_pkey", "a repeated request has one effect",
		`PRIMARY KEY (workspace_id, flow_id, id)`},
	{"flow_shards", "flow_shards_lease", "a shard is leased exactly while it has a holder",
		`CHECK (((leased_by IS NULL) = (lease_until IS NULL))) NULLABLE lease_until, leased_by`},
	{"flow_moves", "flow_moves_lease", "a move is leased exactly while it has a holder",
		`CHECK (((leased_by IS NULL) = (lease_until IS NULL))) NULLABLE lease_until, leased_by`},
	{"flow_polls", "flow_polls_lease", "a poll of an audience is leased exactly while it has a holder",
		`CHECK (((leased_by IS NULL) = (lease_until IS NULL))) NULLABLE lease_until, leased_by`},
	{"outbox", "outbox_pkey", "Outbox!NoDuplicatedProcessing",
		`PRIMARY KEY (workspace_id, id)`},
	{"outbox", "outbox_status", "the statuses of a webhook message are a closed list",
		`CHECK ((status = ANY (ARRAY['pending'::text, 'delivered'::text, 'failed'::text])))`},
	{"outbox", "outbox_lease", "a message is leased exactly while it has a holder and is pending",
		`CHECK ((((leased_by IS NULL) = (lease_until IS NULL)) AND ((status = 'pending'::text) OR (leased_by IS NULL)))) ` +
			`NULLABLE lease_until, leased_by`},
	{"outbox", "outbox_finished", "Outbox!NoLostMessages",
		`CHECK (((status = 'pending'::text) = (finished_at IS NULL))) NULLABLE finished_at`},
	{"outbox", "outbox_event", "a message that carries an event has a number",
		`CHECK ((((event_id IS NULL) = (sequence IS NULL)) AND ((event_id IS NULL) OR (type IS NOT NULL)))) ` +
			`NULLABLE event_id, sequence, type`},
	{"outbox", "outbox_body_of", "a message has the body of its own event",
		`CHECK (((body_of IS NULL) OR ((event_id IS NOT NULL) AND (body_of = event_id)))) NULLABLE body_of, event_id`},
	{"outbox", "outbox_of_event", "Outbox!ConsistentOutput",
		`FOREIGN KEY (workspace_id, body_of) REFERENCES events_out(workspace_id, id) NULLABLE body_of`},
	{"events_out", "events_out_body", "Outbox!ConsistentOutput",
		`CHECK (((published_at IS NULL) OR (body IS NOT NULL))) NULLABLE body, published_at`},
	{"outbox", "outbox_sequence", "Outbox!NoDuplicatedProcessing",
		`UNIQUE USING btree (workspace_id, endpoint_id, sequence) WHERE (sequence IS NOT NULL) NULLABLE sequence`},
	{"events_out", "events_out_pkey", "Outbox!NoDuplicatedProcessing",
		`PRIMARY KEY (workspace_id, id)`},
	{"webhook_subscriptions", "webhook_subscriptions_type", "the types of events are a closed list",
		`CHECK ((type = ANY (ARRAY['notification.sent'::text, 'notification.delivered'::text, 'notification.bounced'::text, ` +
			`'notification.complained'::text, 'notification.failed'::text, 'notification.skipped'::text, ` +
			`'notification.orphaned'::text, 'notification.opened'::text, 'notification.clicked'::text, ` +
			`'notification.unsubscribed'::text, 'campaign.started'::text, 'campaign.paused'::text, 'campaign.completed'::text, ` +
			`'campaign.failed'::text, 'iteration.decided'::text, 'iteration.inconclusive'::text, 'enrollment.started'::text, ` +
			`'enrollment.completed'::text, 'enrollment.exited'::text, 'provider.failing'::text, ` +
			`'suppression.added'::text])))`},
	{"webhook_subscriptions", "webhook_subscriptions_pkey", "a type of an endpoint is stored once",
		`PRIMARY KEY (workspace_id, type, endpoint_id)`},
	{"webhook_endpoints", "webhook_endpoints_status", "the statuses of a webhook endpoint are a closed list",
		`CHECK ((status = ANY (ARRAY['enabled'::text, 'disabled'::text])))`},
	{"webhook_endpoints", "webhook_endpoints_disabled", "a disabled webhook endpoint has a reason",
		`CHECK (((status = 'disabled'::text) = ((disabled_at IS NOT NULL) AND (status_reason IS NOT NULL)))) ` +
			`NULLABLE disabled_at, status_reason`},

	{"direct_keys", "direct_keys_pkey", "KeyStates!OneAtATime, KeyStates!AtMostOnce",
		`PRIMARY KEY (workspace_id, key, period)`},
	{"direct_keys", "direct_keys_attempts", "KeyStates!AtMostOnce, KeyStates!AtMostTwice",
		`CHECK (((max_attempts >= 1) AND (max_attempts <= 2)))`},
	{"direct_keys", "direct_keys_seal", "a seal ends before its period is dropped",
		`CHECK (((seal_for >= '00:00:01'::interval) AND (seal_for <= '72:00:00'::interval)))`},
	{"contents", "contents_source", "a content is of a template, or has its own text",
		`CHECK ((((template_id IS NULL) = (inline IS NOT NULL)) AND ((template_id IS NULL) = (template_version IS NULL)))) ` +
			`NULLABLE inline, template_id, template_version`},

	{"exports", "exports_status", "the statuses of an export are a closed list",
		`CHECK ((status = ANY (ARRAY['queued'::text, 'running'::text, 'publishing'::text, 'completed'::text, 'failed'::text, ` +
			`'cancelled'::text])))`},
	{"exports", "exports_finished", "an export has an end exactly when it has ended",
		`CHECK (((status = ANY (ARRAY['completed'::text, 'failed'::text, 'cancelled'::text])) = (finished_at IS NOT NULL))) ` +
			`NULLABLE finished_at`},

	{"settings", "settings_pkey", "a value of a setting has one row", `PRIMARY KEY (name, value)`},
	{"idempotency_keys", "idempotency_keys_pkey", "a repeated POST has one effect",
		`PRIMARY KEY (workspace_id, key)`},
	{"api_keys", "api_keys_hash", "an API key belongs to one workspace",
		`UNIQUE (hash)`},
}

// expectedTables are the tables of expected, each once.
func expectedTables() []string {
	var tables []string
	for _, w := range expected {
		if !slices.Contains(tables, w.table) {
			tables = append(tables, w.table)
		}
	}
	return tables
}

-- The schema after all migrations. `make schema` writes this file; review it, do not run it.

create table api_keys (
    workspace_id uuid not null,
    id uuid not null,
    name text not null,
    prefix text not null,
    hash bytea not null,
    attempt integer not null default 1,
    scopes text[] not null,
    created_at timestamp with time zone not null default now(),
    last_used_at timestamp with time zone,
    revoked_at timestamp with time zone,
    constraint api_keys_pkey PRIMARY KEY (workspace_id, id),
    constraint api_keys_hash UNIQUE (hash),
    constraint api_keys_name_check CHECK (((length(name) >= 1) AND (length(name) <= 200))),
    constraint api_keys_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(id)
);

create table archives (
    id uuid not null,
    partition text not null,
    number integer not null default 1,
    table_oid oid not null,
    source text not null,
    month date not null,
    row_count bigint,
    bytes bigint,
    stored_at timestamp with time zone,
    constraint archives_pkey PRIMARY KEY (id),
    constraint archives_partition UNIQUE (partition, number),
    constraint archives_table UNIQUE (partition, table_oid),
    constraint archives_stored CHECK ((((stored_at IS NULL) = (row_count IS NULL)) AND ((row_count IS NULL) = (bytes IS NULL))))
);

create table attempts (
    workspace_id uuid not null,
    batch_id uuid not null,
    ordinal smallint not null,
    attempt smallint not null,
    outcome text not null,
    final boolean not null,
    basis text not null,
    reason text,
    code smallint,
    carrier_id text,
    detail text,
    at timestamp with time zone not null default now(),
    constraint attempts_pkey PRIMARY KEY (workspace_id, batch_id, ordinal, attempt),
    constraint attempts_basis CHECK ((basis = ANY (ARRAY['response'::text, 'evidence'::text, 'reaper'::text, 'gate'::text]))),
    constraint attempts_bound CHECK (((attempt >= 1) AND (attempt <= 2))),
    constraint attempts_final CHECK ((final OR ((outcome = 'unknown'::text) AND (attempt = 1)))),
    constraint attempts_outcome CHECK ((outcome = ANY (ARRAY['accepted'::text, 'rejected'::text, 'refused'::text, 'unknown'::text, 'skipped'::text])))
) partition by RANGE (batch_id);

create table attempts_default partition of attempts default;

create table audiences (
    workspace_id uuid not null,
    id uuid not null,
    data_source_id uuid not null,
    name text not null,
    sql text not null,
    key_column text not null,
    email_column text,
    phone_column text,
    phone_region text,
    push_column text,
    opted_out_column text,
    columns jsonb not null,
    version integer not null default 1,
    created_at timestamp with time zone not null default now(),
    updated_at timestamp with time zone not null default now(),
    constraint audiences_pkey PRIMARY KEY (workspace_id, id),
    constraint audiences_name UNIQUE (workspace_id, name),
    constraint audiences_address CHECK ((num_nonnulls(email_column, phone_column, push_column) > 0)),
    constraint audiences_name_check CHECK (((length(name) >= 1) AND (length(name) <= 200))),
    constraint audiences_workspace_id_data_source_id_fkey FOREIGN KEY (workspace_id, data_source_id) REFERENCES data_sources(workspace_id, id)
);

create table audit_log (
    workspace_id uuid not null,
    id uuid not null,
    actor_type text not null,
    actor_id uuid,
    actor_name text not null default ''::text,
    action text not null,
    resource_type text not null,
    resource_id text not null default ''::text,
    request_id text not null default ''::text,
    at timestamp with time zone not null default now(),
    constraint audit_log_pkey PRIMARY KEY (workspace_id, id),
    constraint audit_log_actor CHECK ((actor_type = ANY (ARRAY['api_key'::text, 'cli'::text, 'link'::text])))
) partition by RANGE (id);

create table audit_log_default partition of audit_log default;

create table batch_log (
    workspace_id uuid not null,
    batch_id uuid not null,
    at timestamp with time zone not null default now(),
    event text not null,
    token text,
    first smallint,
    last smallint,
    until timestamp with time zone,
    message_date timestamp with time zone,
    detail text,
    constraint batch_log_event CHECK ((event = ANY (ARRAY['claimed'::text, 'rendering'::text, 'window'::text, 'finished'::text, 'released'::text, 'deferred'::text, 'unresolved'::text, 'reaped'::text, 'crashed'::text, 'expired'::text, 'cancelled'::text, 'lost'::text])))
) partition by RANGE (batch_id);

create table batch_log_default partition of batch_log default;

create table batches (
    workspace_id uuid not null,
    origin_id uuid not null,
    id uuid not null,
    root_id uuid not null,
    provider_id uuid not null,
    content_id uuid not null,
    size smallint not null,
    attempt smallint not null default 1,
    max_attempts smallint not null,
    bulk boolean not null default false,
    status text not null default 'ready'::text,
    gate text not null default 'open'::text,
    due_at timestamp with time zone not null default now(),
    expires_at timestamp with time zone,
    leased_by text,
    lease_until timestamp with time zone,
    called_through smallint not null default '-1'::integer,
    calling smallint not null default 0,
    open smallint[],
    members smallint[],
    deferred smallint[] not null default '{}'::smallint[],
    refusals smallint[],
    retry_at timestamp with time zone[],
    enqueued_at timestamp with time zone not null default now(),
    resumed_at timestamp with time zone,
    sent smallint not null default 0,
    failed smallint not null default 0,
    orphaned smallint not null default 0,
    skipped smallint not null default 0,
    cancelled smallint not null default 0,
    retried smallint not null default 0,
    skips jsonb not null default '{}'::jsonb,
    created_at timestamp with time zone not null default now(),
    finished_at timestamp with time zone,
    constraint batches_pkey PRIMARY KEY (workspace_id, origin_id, id),
    constraint batches_attempt CHECK (((attempt >= 1) AND (attempt <= max_attempts) AND (max_attempts <= 2))),
    constraint batches_counts CHECK ((((((((sent + failed) + orphaned) + skipped) + cancelled) + retried) + calling) <= size)),
    constraint batches_end CHECK (((status = ANY (ARRAY['ready'::text, 'leased'::text])) OR ((((((sent + failed) + orphaned) + skipped) + cancelled) + retried) = size))),
    constraint batches_gate CHECK ((gate = ANY (ARRAY['open'::text, 'held'::text, 'cancelled'::text]))),
    constraint batches_lease CHECK ((((status = 'leased'::text) = (leased_by IS NOT NULL)) AND ((leased_by IS NULL) = (lease_until IS NULL)))),
    constraint batches_root CHECK ((((root_id = id) AND (attempt = 1) AND (members IS NULL)) OR ((root_id <> id) AND (open IS NOT NULL) AND (members IS NOT NULL)))),
    constraint batches_size_check CHECK ((size > 0)),
    constraint batches_status CHECK ((status = ANY (ARRAY['ready'::text, 'leased'::text, 'done'::text, 'cancelled'::text, 'expired'::text])))
) partition by RANGE (origin_id);

create table batches_default partition of batches default with (fillfactor=70, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=2000);

create table blobs (
    workspace_id uuid not null,
    id uuid not null,
    owner_id uuid not null,
    store text not null,
    name text not null,
    status text not null default 'registered'::text,
    leased_by text,
    lease_until timestamp with time zone,
    bytes bigint,
    sha256 bytea,
    created_at timestamp with time zone not null default now(),
    ended_at timestamp with time zone,
    clean_at timestamp with time zone,
    constraint blobs_pkey PRIMARY KEY (workspace_id, id),
    constraint blobs_name UNIQUE (workspace_id, name),
    constraint blobs_content CHECK (((status <> ALL (ARRAY['committed'::text, 'published'::text])) OR ((bytes IS NOT NULL) AND (sha256 IS NOT NULL)))),
    constraint blobs_ended CHECK ((((status = 'ended'::text) = (ended_at IS NOT NULL)) AND ((ended_at IS NULL) = (clean_at IS NULL)))),
    constraint blobs_lease CHECK ((((status = 'registered'::text) = (leased_by IS NOT NULL)) AND ((leased_by IS NULL) = (lease_until IS NULL)))),
    constraint blobs_status CHECK ((status = ANY (ARRAY['registered'::text, 'committed'::text, 'published'::text, 'ended'::text])))
);

create table campaign_requests (
    workspace_id uuid not null,
    campaign_id uuid not null,
    id uuid not null,
    verb text not null,
    at timestamp with time zone not null default now(),
    constraint campaign_requests_pkey PRIMARY KEY (workspace_id, campaign_id, id),
    constraint campaign_requests_workspace_id_campaign_id_fkey FOREIGN KEY (workspace_id, campaign_id) REFERENCES campaigns(workspace_id, id) ON DELETE CASCADE
);

create table campaigns (
    workspace_id uuid not null,
    id uuid not null,
    name text not null,
    status text not null default 'draft'::text,
    status_reason text,
    status_detail text,
    audience_id uuid not null,
    template_id uuid not null,
    template_version integer not null,
    provider_id uuid not null,
    strategy text not null default 'at_least_once'::text,
    from_name text not null default ''::text,
    from_email text not null,
    reply_to text not null default ''::text,
    headers jsonb not null default '{}'::jsonb,
    metadata jsonb not null default '{}'::jsonb,
    scheduled_at timestamp with time zone,
    template_error_limit double precision,
    errors_before bigint not null default 0,
    ended_before bigint not null default 0,
    transactional boolean not null default false,
    topic_id uuid,
    conversion_event text,
    conversion_within interval,
    send_deadline timestamp with time zone,
    started_at timestamp with time zone,
    sending_at timestamp with time zone,
    paused_at timestamp with time zone,
    resumed_at timestamp with time zone,
    settle_at timestamp with time zone not null default now(),
    unchecked_since timestamp with time zone,
    finished_at timestamp with time zone,
    version integer not null default 1,
    created_at timestamp with time zone not null default now(),
    updated_at timestamp with time zone not null default now(),
    constraint campaigns_pkey PRIMARY KEY (workspace_id, id),
    constraint campaigns_conversion CHECK (((conversion_event IS NULL) = (conversion_within IS NULL))),
    constraint campaigns_name_check CHECK (((length(name) >= 1) AND (length(name) <= 200))),
    constraint campaigns_scheduled CHECK (((status <> 'scheduled'::text) OR (scheduled_at IS NOT NULL))),
    constraint campaigns_status CHECK ((status = ANY (ARRAY['draft'::text, 'scheduled'::text, 'preparing'::text, 'sending'::text, 'paused'::text, 'completed'::text, 'cancelled'::text, 'failed'::text]))),
    constraint campaigns_strategy_check CHECK ((strategy = ANY (ARRAY['at_least_once'::text, 'at_most_once'::text]))),
    constraint campaigns_template_error_limit_check CHECK (((template_error_limit >= (0)::double precision) AND (template_error_limit <= (1)::double precision))),
    constraint campaigns_topic CHECK (((topic_id IS NULL) OR (NOT transactional))),
    constraint campaigns_workspace_id_audience_id_fkey FOREIGN KEY (workspace_id, audience_id) REFERENCES audiences(workspace_id, id),
    constraint campaigns_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(id),
    constraint campaigns_workspace_id_provider_id_fkey FOREIGN KEY (workspace_id, provider_id) REFERENCES providers(workspace_id, id),
    constraint campaigns_workspace_id_template_id_template_version_fkey FOREIGN KEY (workspace_id, template_id, template_version) REFERENCES template_versions(workspace_id, template_id, version),
    constraint campaigns_workspace_id_topic_id_fkey FOREIGN KEY (workspace_id, topic_id) REFERENCES topics(workspace_id, id)
);

create table contents (
    workspace_id uuid not null,
    id uuid not null,
    channel text not null,
    template_id uuid,
    template_version integer,
    from_name text not null,
    from_email text not null,
    reply_to text not null,
    headers jsonb not null,
    transactional boolean not null default false,
    topic_id uuid,
    created_at timestamp with time zone not null default now(),
    flow_id uuid,
    node text,
    subject text,
    preheader text,
    conversion_event text,
    conversion_within interval,
    inline text,
    audience_id uuid,
    constraint contents_pkey PRIMARY KEY (workspace_id, id),
    constraint contents_channel_check CHECK ((channel = ANY (ARRAY['email'::text, 'sms'::text, 'push'::text]))),
    constraint contents_conversion CHECK (((conversion_event IS NULL) = (conversion_within IS NULL))),
    constraint contents_source CHECK ((((template_id IS NULL) = (inline IS NOT NULL)) AND ((template_id IS NULL) = (template_version IS NULL)))),
    constraint contents_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(id),
    constraint contents_workspace_id_template_id_template_version_fkey FOREIGN KEY (workspace_id, template_id, template_version) REFERENCES template_versions(workspace_id, template_id, version)
);

create table conversion_positions (
    queue text not null,
    until timestamp with time zone not null default now(),
    constraint conversion_positions_pkey PRIMARY KEY (queue),
    constraint conversion_positions_queue CHECK ((queue = ANY (ARRAY['conversion_queue'::text, 'settlement_queue'::text, 'resolutions'::text])))
);

create table conversion_queue (
    workspace_id uuid not null,
    received_at timestamp with time zone not null,
    key uuid not null,
    constraint conversion_queue_pkey PRIMARY KEY (workspace_id, received_at, key)
) with (autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=5000);

create table data_sources (
    workspace_id uuid not null,
    id uuid not null,
    name text not null,
    kind text not null,
    address text not null,
    tls text not null default 'prefer'::text,
    dsn bytea not null,
    status text not null default 'untested'::text,
    tested_at timestamp with time zone,
    test_error text,
    role_warnings text[] not null default '{}'::text[],
    role_revokes text[] not null default '{}'::text[],
    version integer not null default 1,
    created_at timestamp with time zone not null default now(),
    updated_at timestamp with time zone not null default now(),
    constraint data_sources_pkey PRIMARY KEY (workspace_id, id),
    constraint data_sources_name UNIQUE (workspace_id, name),
    constraint data_sources_kind_check CHECK ((kind = ANY (ARRAY['postgres'::text, 'mysql'::text]))),
    constraint data_sources_name_check CHECK (((length(name) >= 1) AND (length(name) <= 200))),
    constraint data_sources_status_check CHECK ((status = ANY (ARRAY['untested'::text, 'ok'::text, 'failed'::text]))),
    constraint data_sources_tls_check CHECK ((tls = ANY (ARRAY['unix'::text, 'disable'::text, 'prefer'::text, 'require'::text, 'verify-full'::text]))),
    constraint data_sources_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(id)
);

create table deliveries (
    workspace_id uuid not null,
    origin_id uuid not null,
    key uuid not null,
    state text not null,
    rank smallint not null,
    at timestamp with time zone not null,
    constraint deliveries_pkey PRIMARY KEY (workspace_id, origin_id, key),
    constraint deliveries_rank CHECK (((rank > 0) AND (rank = COALESCE(array_position(ARRAY['delayed'::text, 'rejected'::text, 'undelivered'::text, 'delivered'::text, 'bounced'::text, 'complained'::text], state), 0))))
) partition by RANGE (origin_id);

create table deliveries_default partition of deliveries default with (fillfactor=80);

create table delivery_counts (
    workspace_id uuid not null,
    origin_id uuid not null,
    content_id uuid not null,
    state text not null,
    count bigint not null,
    constraint delivery_counts_pkey PRIMARY KEY (workspace_id, origin_id, content_id, state),
    constraint delivery_counts_positive CHECK ((count >= 0))
) with (fillfactor=50);

create table direct_key_periods (
    id uuid not null,
    began_at timestamp with time zone not null default now(),
    constraint direct_key_periods_pkey PRIMARY KEY (id)
);

create table direct_keys (
    workspace_id uuid not null,
    period uuid not null,
    key uuid not null,
    token uuid not null,
    origin_id uuid not null,
    request_hash uuid not null,
    max_attempts smallint not null,
    stored boolean not null,
    locked_until timestamp with time zone not null,
    seal_for interval not null,
    constraint direct_keys_pkey PRIMARY KEY (workspace_id, key, period),
    constraint direct_keys_attempts CHECK (((max_attempts >= 1) AND (max_attempts <= 2))),
    constraint direct_keys_seal CHECK (((seal_for >= '00:00:01'::interval) AND (seal_for <= '72:00:00'::interval)))
) partition by RANGE (period);

create table direct_keys_default partition of direct_keys default with (fillfactor=90);

create table engagement_counts (
    workspace_id uuid not null,
    origin_id uuid not null,
    content_id uuid not null,
    opens bigint not null,
    unique_opens bigint not null,
    clicks bigint not null,
    unique_clicks bigint not null,
    machine_opens bigint not null,
    machine_clicks bigint not null,
    conversions bigint not null default 0,
    unsubscribes bigint not null default 0,
    constraint engagement_counts_pkey PRIMARY KEY (workspace_id, origin_id, content_id),
    constraint engagement_counts_unique CHECK (((unique_opens >= 0) AND (unique_opens <= opens) AND (unique_clicks >= 0) AND (unique_clicks <= clicks)))
) with (fillfactor=50);

create table engagements (
    workspace_id uuid not null,
    origin_id uuid not null,
    key uuid not null,
    content_id uuid not null,
    opens integer not null,
    clicks integer not null,
    conversions integer not null default 0,
    unsubscribes integer not null default 0,
    opened_at timestamp with time zone,
    clicked_at timestamp with time zone,
    machine_opened_at timestamp with time zone,
    machine_clicked_at timestamp with time zone,
    constraint engagements_pkey PRIMARY KEY (workspace_id, origin_id, key)
) partition by RANGE (origin_id);

create table engagements_default partition of engagements default with (fillfactor=80);

create table enrollment_keys (
    workspace_id uuid not null,
    flow_id uuid not null,
    uniqueness_key uuid not null,
    enrollment_id uuid not null,
    constraint enrollment_keys_once PRIMARY KEY (flow_id, uniqueness_key, workspace_id)
);

create table enrollment_steps (
    workspace_id uuid not null,
    enrollment_id uuid not null,
    step integer not null,
    version integer not null,
    node text not null,
    event text not null,
    data text,
    at timestamp with time zone not null default now(),
    constraint enrollment_steps_pkey PRIMARY KEY (workspace_id, enrollment_id, step),
    constraint enrollment_steps_event CHECK ((event = ANY (ARRAY['enrolled'::text, 'refused'::text, 'checked'::text, 'sent'::text, 'skipped'::text, 'resumed'::text, 'zone_unknown'::text, 'timed_out'::text, 'branched'::text, 'split'::text, 'webhook'::text, 'answered'::text, 'moved'::text, 'completed'::text, 'exited'::text])))
) partition by RANGE (enrollment_id);

create table enrollment_steps_default partition of enrollment_steps default;

create table enrollments (
    workspace_id uuid not null,
    id uuid not null,
    flow_id uuid not null,
    version integer not null,
    shard smallint not null,
    uniqueness_key uuid not null,
    overlap_key uuid not null,
    profile_key text not null,
    status text not null default 'active'::text,
    node text not null,
    step integer not null default 0,
    moved boolean not null default false,
    waiting_since timestamp with time zone,
    resume_at timestamp with time zone,
    first_due_at timestamp with time zone,
    awaits text,
    matched_event uuid,
    answer_step integer,
    failures smallint not null default 0,
    blocked_reason text,
    source text not null,
    enrolled_at timestamp with time zone not null default now(),
    ended_at timestamp with time zone,
    exit_reason text,
    constraint enrollments_pkey PRIMARY KEY (workspace_id, id),
    constraint enrollments_due CHECK (((status = 'active'::text) = (resume_at IS NOT NULL))),
    constraint enrollments_ended CHECK (((status = 'active'::text) = (ended_at IS NULL))),
    constraint enrollments_source CHECK ((source = ANY (ARRAY['event'::text, 'audience'::text, 'direct'::text]))),
    constraint enrollments_status CHECK ((status = ANY (ARRAY['active'::text, 'completed'::text, 'exited'::text, 'refused'::text])))
) with (fillfactor=80, autovacuum_vacuum_scale_factor=0.02);

create table event_queue (
    workspace_id uuid not null,
    id uuid not null,
    provider_id uuid not null,
    origin_id uuid,
    key uuid,
    batch_id uuid,
    ordinal smallint,
    type text not null,
    attempt smallint,
    channel text,
    address text,
    detail text,
    occurred_at timestamp with time zone not null,
    recorded_at timestamp with time zone not null default now(),
    constraint event_queue_pkey PRIMARY KEY (workspace_id, id)
) with (autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=5000);

create table events_out (
    workspace_id uuid not null,
    id uuid not null,
    type text not null,
    origin_id uuid not null,
    batch_id uuid,
    ordinals smallint[],
    keys bytea,
    details text[],
    data jsonb not null default '{}'::jsonb,
    count integer not null,
    occurred_at timestamp with time zone not null default now(),
    published_at timestamp with time zone,
    aside_until timestamp with time zone,
    body text,
    constraint events_out_pkey PRIMARY KEY (workspace_id, id),
    constraint events_out_body CHECK (((published_at IS NULL) OR (body IS NOT NULL)))
) with (autovacuum_vacuum_scale_factor=0.02, fillfactor=70);

create table exports (
    workspace_id uuid not null,
    id uuid not null,
    type text not null,
    format text not null,
    filters jsonb not null default '{}'::jsonb,
    csv_formulas text not null default 'escape'::text,
    status text not null default 'queued'::text,
    status_reason text,
    status_detail text,
    attempts integer not null default 0,
    failures integer not null default 0,
    retry_at timestamp with time zone not null default now(),
    row_count bigint not null default 0,
    byte_count bigint not null default 0,
    created_at timestamp with time zone not null default now(),
    started_at timestamp with time zone,
    finished_at timestamp with time zone,
    expires_at timestamp with time zone,
    constraint exports_pkey PRIMARY KEY (workspace_id, id),
    constraint exports_csv_formulas CHECK ((csv_formulas = ANY (ARRAY['escape'::text, 'keep'::text]))),
    constraint exports_expires CHECK (((finished_at IS NULL) = (expires_at IS NULL))),
    constraint exports_finished CHECK (((status = ANY (ARRAY['completed'::text, 'failed'::text, 'cancelled'::text])) = (finished_at IS NOT NULL))),
    constraint exports_format CHECK ((format = ANY (ARRAY['csv'::text, 'ndjson'::text, 'parquet'::text]))),
    constraint exports_status CHECK ((status = ANY (ARRAY['queued'::text, 'running'::text, 'publishing'::text, 'completed'::text, 'failed'::text, 'cancelled'::text]))),
    constraint exports_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(id)
) with (fillfactor=70);

create table fanout_chunks (
    workspace_id uuid not null,
    origin_id uuid not null,
    id uuid not null,
    run integer not null,
    created integer not null,
    skipped jsonb not null default '{}'::jsonb,
    at timestamp with time zone not null default now(),
    constraint fanout_chunks_pkey PRIMARY KEY (workspace_id, origin_id, id)
);

create table fanouts (
    workspace_id uuid not null,
    campaign_id uuid not null,
    leased_by text,
    lease_until timestamp with time zone,
    runs integer not null default 0,
    source_failures integer not null default 0,
    internal_failures integer not null default 0,
    crashes integer not null default 0,
    retry_at timestamp with time zone not null default now(),
    finished_at timestamp with time zone,
    rows_read bigint,
    profiles bigint,
    constraint fanouts_pkey PRIMARY KEY (workspace_id, campaign_id),
    constraint fanouts_lease CHECK (((leased_by IS NULL) = (lease_until IS NULL))),
    constraint fanouts_workspace_id_campaign_id_fkey FOREIGN KEY (workspace_id, campaign_id) REFERENCES campaigns(workspace_id, id)
);

create table flow_listeners (
    workspace_id uuid not null,
    event text not null,
    flow_id uuid not null,
    version integer not null,
    use text not null,
    constraint flow_listeners_pkey PRIMARY KEY (workspace_id, event, flow_id, version, use),
    constraint flow_listeners_use CHECK ((use = ANY (ARRAY['trigger'::text, 'exit'::text, 'wait'::text])))
);

create table flow_log (
    workspace_id uuid not null,
    flow_id uuid not null,
    id uuid not null,
    action text not null,
    version integer,
    api_key_id uuid,
    detail jsonb not null default '{}'::jsonb,
    at timestamp with time zone not null default now(),
    constraint flow_log_pkey PRIMARY KEY (workspace_id, flow_id, id),
    constraint flow_log_action CHECK ((action = ANY (ARRAY['published'::text, 'rolled_back'::text, 'paused'::text, 'resumed'::text, 'drained'::text, 'archived'::text])))
);

create table flow_moves (
    workspace_id uuid not null,
    flow_id uuid not null,
    id uuid not null,
    to_version integer,
    node_map jsonb not null default '{}'::jsonb,
    exit_reason text,
    moved bigint not null default 0,
    exited bigint not null default 0,
    retry_at timestamp with time zone not null default now(),
    leased_by text,
    lease_until timestamp with time zone,
    created_at timestamp with time zone not null default now(),
    finished_at timestamp with time zone,
    constraint flow_moves_pkey PRIMARY KEY (workspace_id, flow_id, id),
    constraint flow_moves_lease CHECK (((leased_by IS NULL) = (lease_until IS NULL)))
);

create table flow_node_counts (
    workspace_id uuid not null,
    flow_id uuid not null,
    version integer not null,
    node text not null,
    event text not null,
    next text not null default ''::text,
    shard smallint not null,
    processed bigint not null,
    constraint flow_node_counts_pkey PRIMARY KEY (workspace_id, flow_id, version, node, event, next, shard)
) with (fillfactor=50);

create table flow_origins (
    workspace_id uuid not null,
    origin_id uuid not null,
    flow_id uuid not null,
    constraint flow_origins_pkey PRIMARY KEY (workspace_id, origin_id)
);

create table flow_polls (
    workspace_id uuid not null,
    flow_id uuid not null,
    next_at timestamp with time zone not null default now(),
    leased_by text,
    lease_until timestamp with time zone,
    failures integer not null default 0,
    last_error text,
    last_at timestamp with time zone,
    rows_read bigint,
    enrolled bigint,
    refused jsonb not null default '{}'::jsonb,
    constraint flow_polls_pkey PRIMARY KEY (workspace_id, flow_id),
    constraint flow_polls_lease CHECK (((leased_by IS NULL) = (lease_until IS NULL))),
    constraint flow_polls_workspace_id_flow_id_fkey FOREIGN KEY (workspace_id, flow_id) REFERENCES flows(workspace_id, id) ON DELETE CASCADE
);

create table flow_shards (
    workspace_id uuid not null,
    flow_id uuid not null,
    shard smallint not null,
    leased_by text,
    lease_until timestamp with time zone,
    worked_at timestamp with time zone not null default '-infinity'::timestamp with time zone,
    retry_at timestamp with time zone not null default '-infinity'::timestamp with time zone,
    held bigint not null default 0,
    released bigint not null default 0,
    next_due_at timestamp with time zone,
    constraint flow_shards_pkey PRIMARY KEY (workspace_id, flow_id, shard),
    constraint flow_shards_lease CHECK (((leased_by IS NULL) = (lease_until IS NULL))),
    constraint flow_shards_workspace_id_flow_id_fkey FOREIGN KEY (workspace_id, flow_id) REFERENCES flows(workspace_id, id) ON DELETE CASCADE
) with (fillfactor=50, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=2000);

create table flow_uses (
    workspace_id uuid not null,
    flow_id uuid not null,
    version integer not null,
    node text not null,
    audience_id uuid,
    data_source_id uuid,
    template_id uuid,
    template_version integer,
    provider_id uuid,
    endpoint_id uuid,
    topic_id uuid,
    constraint flow_uses_pkey PRIMARY KEY (workspace_id, flow_id, version, node),
    constraint flow_uses_workspace_id_audience_id_fkey FOREIGN KEY (workspace_id, audience_id) REFERENCES audiences(workspace_id, id),
    constraint flow_uses_workspace_id_data_source_id_fkey FOREIGN KEY (workspace_id, data_source_id) REFERENCES data_sources(workspace_id, id),
    constraint flow_uses_workspace_id_endpoint_id_fkey FOREIGN KEY (workspace_id, endpoint_id) REFERENCES webhook_endpoints(workspace_id, id),
    constraint flow_uses_workspace_id_flow_id_version_fkey FOREIGN KEY (workspace_id, flow_id, version) REFERENCES flow_versions(workspace_id, flow_id, version) ON DELETE CASCADE,
    constraint flow_uses_workspace_id_provider_id_fkey FOREIGN KEY (workspace_id, provider_id) REFERENCES providers(workspace_id, id),
    constraint flow_uses_workspace_id_template_id_template_version_fkey FOREIGN KEY (workspace_id, template_id, template_version) REFERENCES template_versions(workspace_id, template_id, version),
    constraint flow_uses_workspace_id_topic_id_fkey FOREIGN KEY (workspace_id, topic_id) REFERENCES topics(workspace_id, id)
);

create table flow_versions (
    workspace_id uuid not null,
    flow_id uuid not null,
    version integer not null,
    status text not null default 'draft'::text,
    definition text not null,
    revision integer not null default 1,
    request uuid not null,
    created_at timestamp with time zone not null default now(),
    updated_at timestamp with time zone not null default now(),
    published_at timestamp with time zone,
    nodes text[],
    recheck_failed_at timestamp with time zone,
    recheck_reason text,
    recheck_detail text,
    constraint flow_versions_pkey PRIMARY KEY (workspace_id, flow_id, version),
    constraint flow_versions_request UNIQUE (workspace_id, flow_id, request),
    constraint flow_versions_published CHECK ((((status = 'published'::text) = (published_at IS NOT NULL)) AND ((status = 'published'::text) = (nodes IS NOT NULL)))),
    constraint flow_versions_status CHECK ((status = ANY (ARRAY['draft'::text, 'published'::text]))),
    constraint flow_versions_version_check CHECK ((version >= 1)),
    constraint flow_versions_workspace_id_flow_id_fkey FOREIGN KEY (workspace_id, flow_id) REFERENCES flows(workspace_id, id) ON DELETE CASCADE
);

create table flows (
    workspace_id uuid not null,
    id uuid not null,
    name text not null,
    status text not null default 'draft'::text,
    status_reason text,
    status_detail text,
    versions integer not null default 0,
    live_version integer,
    metadata jsonb not null default '{}'::jsonb,
    overlapped boolean not null default false,
    recurred boolean not null default false,
    had_audience boolean not null default false,
    paused_at timestamp with time zone,
    resumed_at timestamp with time zone,
    catch_up_until timestamp with time zone,
    version integer not null default 1,
    created_at timestamp with time zone not null default now(),
    updated_at timestamp with time zone not null default now(),
    constraint flows_pkey PRIMARY KEY (workspace_id, id),
    constraint flows_live CHECK (((status = ANY (ARRAY['draft'::text, 'archived'::text])) OR (live_version IS NOT NULL))),
    constraint flows_name_check CHECK (((length(name) >= 1) AND (length(name) <= 200))),
    constraint flows_status CHECK ((status = ANY (ARRAY['draft'::text, 'live'::text, 'paused'::text, 'draining'::text, 'archived'::text]))),
    constraint flows_live_version FOREIGN KEY (workspace_id, id, live_version) REFERENCES flow_versions(workspace_id, flow_id, version) DEFERRABLE INITIALLY DEFERRED,
    constraint flows_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(id)
);

create table idempotency_keys (
    workspace_id uuid not null,
    key text not null,
    request_hash bytea not null,
    locked_by uuid not null,
    claims integer not null default 1,
    locked_until timestamp with time zone not null,
    called_at timestamp with time zone,
    status integer,
    headers jsonb,
    body bytea,
    excess bigint,
    created_at timestamp with time zone not null default now(),
    constraint idempotency_keys_pkey PRIMARY KEY (workspace_id, key),
    constraint idempotency_keys_key_check CHECK (((length(key) >= 1) AND (length(key) <= 255))),
    constraint idempotency_keys_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(id)
);

create table iteration_log (
    workspace_id uuid not null,
    iteration_id uuid not null,
    id uuid not null,
    at timestamp with time zone not null default now(),
    event text not null,
    detail text not null default ''::text,
    constraint iteration_log_pkey PRIMARY KEY (workspace_id, iteration_id, id),
    constraint iteration_log_event CHECK ((event = ANY (ARRAY['started'::text, 'sampled'::text, 'evaluated'::text, 'evaluation_failed'::text, 'extended'::text, 'decided'::text, 'held'::text, 'rollout_started'::text, 'completed'::text, 'stopped'::text, 'cancelled'::text, 'variant_stopped'::text])))
);

create table iteration_members (
    workspace_id uuid not null,
    origin_id uuid not null,
    id uuid not null,
    ordinal smallint not null,
    profiles bytea not null,
    constraint iteration_members_pkey PRIMARY KEY (workspace_id, origin_id, id)
) with (toast_tuple_target=8160);

create table iteration_results (
    workspace_id uuid not null,
    iteration_id uuid not null,
    at timestamp with time zone not null,
    ordinal smallint not null,
    recipients bigint not null,
    sent bigint not null,
    failed bigint not null,
    skipped bigint not null,
    converted bigint,
    excluded bigint not null,
    delivered bigint not null,
    opens bigint not null,
    clicks bigint not null,
    unsubscribes bigint not null,
    complaints bigint not null,
    written bigint not null,
    constraint iteration_results_pkey PRIMARY KEY (workspace_id, iteration_id, at, ordinal)
);

create table iteration_variants (
    workspace_id uuid not null,
    iteration_id uuid not null,
    ordinal smallint not null,
    name text not null,
    weight integer not null,
    template_id uuid,
    template_version integer,
    subject text,
    preheader text,
    from_name text,
    send_offset interval not null default '00:00:00'::interval,
    content_id uuid not null,
    stopped_at timestamp with time zone,
    stopped_reason text,
    constraint iteration_variants_pkey PRIMARY KEY (workspace_id, iteration_id, ordinal),
    constraint iteration_variants_name UNIQUE (workspace_id, iteration_id, name),
    constraint iteration_variants_name_check CHECK (((length(name) >= 1) AND (length(name) <= 100))),
    constraint iteration_variants_ordinal_check CHECK ((ordinal >= 0)),
    constraint iteration_variants_send_offset_check CHECK ((send_offset >= '00:00:00'::interval)),
    constraint iteration_variants_weight_check CHECK ((weight > 0)),
    constraint iteration_variants_workspace_id_iteration_id_fkey FOREIGN KEY (workspace_id, iteration_id) REFERENCES iterations(workspace_id, id) ON DELETE CASCADE,
    constraint iteration_variants_workspace_id_template_id_template_versi_fkey FOREIGN KEY (workspace_id, template_id, template_version) REFERENCES template_versions(workspace_id, template_id, version)
);

create table iterations (
    workspace_id uuid not null,
    id uuid not null,
    campaign_id uuid not null,
    status text not null default 'draft'::text,
    status_reason text,
    status_detail text,
    sample_percent double precision not null,
    holdout_percent double precision not null,
    metric text,
    event_name text,
    data_source_id uuid,
    sql text,
    duration interval,
    evaluate_at timestamp with time zone,
    min_sample bigint not null default 0,
    confidence double precision not null default 0.95,
    on_inconclusive text not null default 'hold'::text,
    base_rate double precision not null default 0.05,
    effect double precision not null default 0.01,
    guardrail text,
    guardrail_limit double precision,
    guardrail_at timestamp with time zone,
    guardrail_checks smallint not null default 0,
    started_at timestamp with time zone,
    cut_off_at timestamp with time zone,
    measure_at timestamp with time zone,
    extensions smallint not null default 0,
    evaluating_by text,
    evaluating_until timestamp with time zone,
    retry_at timestamp with time zone not null default now(),
    failures integer not null default 0,
    winner smallint,
    decided_by text,
    decided_at timestamp with time zone,
    verdict jsonb,
    rollout_id uuid,
    created_at timestamp with time zone not null default now(),
    constraint iterations_pkey PRIMARY KEY (workspace_id, id),
    constraint iterations_campaign UNIQUE (workspace_id, campaign_id),
    constraint iterations_claim CHECK ((((evaluating_by IS NULL) = (evaluating_until IS NULL)) AND ((evaluating_by IS NULL) OR (status = ANY (ARRAY['sampling'::text, 'running'::text, 'evaluating'::text, 'inconclusive'::text]))))),
    constraint iterations_confidence_check CHECK (((confidence >= (0.5)::double precision) AND (confidence < (1)::double precision))),
    constraint iterations_decided CHECK ((((winner IS NULL) = (decided_by IS NULL)) AND ((winner IS NULL) = (decided_at IS NULL)) AND ((winner IS NULL) = (rollout_id IS NULL)) AND ((winner IS NOT NULL) OR (status <> ALL (ARRAY['decided'::text, 'rolling_out'::text]))) AND ((winner IS NULL) OR (status = ANY (ARRAY['decided'::text, 'rolling_out'::text, 'completed'::text, 'cancelled'::text]))))),
    constraint iterations_decided_by CHECK ((decided_by = ANY (ARRAY['evaluation'::text, 'on_inconclusive'::text, 'person'::text]))),
    constraint iterations_extensions CHECK (((extensions >= 0) AND (extensions <= 100))),
    constraint iterations_guardrail CHECK (((guardrail IS NULL) = (guardrail_limit IS NULL))),
    constraint iterations_guardrail_kind CHECK ((guardrail = ANY (ARRAY['unsubscribes'::text, 'complaints'::text]))),
    constraint iterations_guardrail_limit_check CHECK (((guardrail_limit > (0)::double precision) AND (guardrail_limit < (1)::double precision))),
    constraint iterations_holdout_percent_check CHECK (((holdout_percent >= (0)::double precision) AND (holdout_percent <= (50)::double precision))),
    constraint iterations_metric CHECK ((
CASE metric
    WHEN 'event'::text THEN ((event_name IS NOT NULL) AND (data_source_id IS NULL) AND (sql IS NULL))
    WHEN 'sql'::text THEN ((event_name IS NULL) AND (data_source_id IS NOT NULL) AND (sql IS NOT NULL))
    ELSE ((event_name IS NULL) AND (data_source_id IS NULL) AND (sql IS NULL))
END AND ((metric IS NOT NULL) = ((duration IS NOT NULL) OR (evaluate_at IS NOT NULL))) AND ((duration IS NULL) OR (evaluate_at IS NULL)))),
    constraint iterations_metric_kind CHECK ((metric = ANY (ARRAY['event'::text, 'sql'::text, 'unique_opens'::text, 'unique_clicks'::text]))),
    constraint iterations_min_sample_check CHECK ((min_sample >= 0)),
    constraint iterations_on_inconclusive_check CHECK ((on_inconclusive = ANY (ARRAY['best'::text, 'control'::text, 'hold'::text]))),
    constraint iterations_sample_percent_check CHECK (((sample_percent > (0)::double precision) AND (sample_percent <= (100)::double precision))),
    constraint iterations_status CHECK ((status = ANY (ARRAY['draft'::text, 'sampling'::text, 'running'::text, 'evaluating'::text, 'inconclusive'::text, 'decided'::text, 'rolling_out'::text, 'completed'::text, 'cancelled'::text]))),
    constraint iterations_winner FOREIGN KEY (workspace_id, id, winner) REFERENCES iteration_variants(workspace_id, iteration_id, ordinal),
    constraint iterations_workspace_id_campaign_id_fkey FOREIGN KEY (workspace_id, campaign_id) REFERENCES campaigns(workspace_id, id) ON DELETE CASCADE,
    constraint iterations_workspace_id_data_source_id_fkey FOREIGN KEY (workspace_id, data_source_id) REFERENCES data_sources(workspace_id, id)
);

create table link_counts (
    workspace_id uuid not null,
    origin_id uuid not null,
    content_id uuid not null,
    link integer not null,
    clicks bigint not null,
    machine_clicks bigint not null,
    constraint link_counts_pkey PRIMARY KEY (workspace_id, origin_id, content_id, link)
) with (fillfactor=50);

create table link_keys (
    workspace_id uuid not null,
    number integer not null,
    id uuid not null,
    secret bytea not null,
    created_at timestamp with time zone not null default now(),
    constraint link_keys_pkey PRIMARY KEY (workspace_id, number),
    constraint link_keys_number CHECK (((number >= 1) AND (number <= 65535))),
    constraint link_keys_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(id)
);

create table notifications (
    workspace_id uuid not null,
    origin_id uuid not null,
    key uuid not null,
    batch_id uuid,
    ordinal smallint,
    profile_key text not null,
    address text,
    payload text,
    skip_reason text,
    created_at timestamp with time zone not null default now(),
    enrollment_id uuid,
    content_id uuid,
    converts boolean,
    metadata text,
    constraint notifications_pkey PRIMARY KEY (workspace_id, origin_id, key),
    constraint notifications_place CHECK ((((skip_reason IS NULL) AND (batch_id IS NOT NULL) AND (ordinal IS NOT NULL) AND (address IS NOT NULL)) OR ((skip_reason IS NOT NULL) AND (batch_id IS NULL) AND (ordinal IS NULL)))),
    constraint notifications_skip_reason CHECK ((skip_reason = ANY (ARRAY['missing_address'::text, 'invalid_address'::text, 'duplicate_address'::text, 'too_many_addresses'::text, 'row_too_large'::text, 'unsubscribed'::text, 'invalid_key'::text, 'holdout'::text])))
) partition by RANGE (origin_id);

create table notifications_default partition of notifications default;

create table opt_outs (
    workspace_id uuid not null,
    origin_id uuid not null,
    id uuid not null,
    constraint opt_outs_pkey PRIMARY KEY (workspace_id, origin_id, id)
);

create table outbox (
    workspace_id uuid not null,
    id uuid not null,
    endpoint_id uuid not null,
    body text not null,
    body_of uuid,
    enrollment_id uuid,
    step integer,
    event_id uuid,
    type text,
    sequence bigint,
    resent_at timestamp with time zone,
    status text not null default 'pending'::text,
    attempts integer not null default 0,
    status_code integer,
    last_error text,
    called_at timestamp with time zone,
    answered boolean not null default false,
    due_at timestamp with time zone not null default now(),
    waits boolean not null default false,
    leased_by text,
    lease_until timestamp with time zone,
    created_at timestamp with time zone not null default now(),
    finished_at timestamp with time zone,
    constraint outbox_pkey PRIMARY KEY (workspace_id, id),
    constraint outbox_body_of CHECK (((body_of IS NULL) OR ((event_id IS NOT NULL) AND (body_of = event_id)))),
    constraint outbox_event CHECK ((((event_id IS NULL) = (sequence IS NULL)) AND ((event_id IS NULL) OR (type IS NOT NULL)))),
    constraint outbox_finished CHECK (((status = 'pending'::text) = (finished_at IS NULL))),
    constraint outbox_lease CHECK ((((leased_by IS NULL) = (lease_until IS NULL)) AND ((status = 'pending'::text) OR (leased_by IS NULL)))),
    constraint outbox_status CHECK ((status = ANY (ARRAY['pending'::text, 'delivered'::text, 'failed'::text]))),
    constraint outbox_of_event FOREIGN KEY (workspace_id, body_of) REFERENCES events_out(workspace_id, id)
) with (autovacuum_vacuum_scale_factor=0.02);

create table provider_events (
    workspace_id uuid not null,
    origin_id uuid not null,
    id uuid not null,
    provider_id uuid not null,
    source text not null,
    source_event_id text not null,
    batch_id uuid,
    ordinal smallint,
    attempt smallint,
    type text,
    kind text not null,
    code smallint,
    reason text,
    carrier_id text,
    detail text,
    occurred_at timestamp with time zone not null,
    recorded_at timestamp with time zone not null default now(),
    constraint provider_events_kind CHECK ((kind = ANY (ARRAY['accepted'::text, 'rejected'::text, 'deferred'::text]))),
    constraint provider_events_type CHECK ((type = ANY (ARRAY['accepted'::text, 'rejected'::text, 'deferred'::text, 'delayed'::text, 'delivered'::text, 'bounced'::text, 'soft_bounced'::text, 'undelivered'::text, 'complained'::text, 'opened'::text, 'clicked'::text, 'unsubscribed'::text])))
) partition by RANGE (origin_id);

create table provider_events_default partition of provider_events default;

create table provider_meters (
    workspace_id uuid not null,
    provider_id uuid not null,
    next_free_at timestamp with time zone not null default '-infinity'::timestamp with time zone,
    failures integer not null default 0,
    refusals integer not null default 0,
    rejections integer not null default 0,
    hangs integer not null default 0,
    first_error text,
    failing_since timestamp with time zone,
    last_error text,
    failed_at timestamp with time zone,
    asked_until timestamp with time zone,
    opened_at timestamp with time zone,
    open_until timestamp with time zone,
    probes smallint not null default 0,
    probe_token text,
    probe_until timestamp with time zone,
    throttled_at timestamp with time zone,
    throttled_by text,
    constraint provider_meters_pkey PRIMARY KEY (workspace_id, provider_id),
    constraint provider_meters_circuit CHECK ((((opened_at IS NULL) = (open_until IS NULL)) AND ((opened_at IS NOT NULL) OR (probe_token IS NULL)) AND ((probe_token IS NULL) = (probe_until IS NULL)))),
    constraint provider_meters_workspace_id_provider_id_fkey FOREIGN KEY (workspace_id, provider_id) REFERENCES providers(workspace_id, id) ON DELETE CASCADE
) with (fillfactor=50);

create table provider_test_meters (
    workspace_id uuid not null,
    next_free_at timestamp with time zone not null,
    constraint provider_test_meters_pkey PRIMARY KEY (workspace_id),
    constraint provider_test_meters_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(id)
);

create table provider_watermarks (
    workspace_id uuid not null,
    provider_id uuid not null,
    occurred_at timestamp with time zone not null,
    recorded_at timestamp with time zone not null,
    constraint provider_watermarks_pkey PRIMARY KEY (workspace_id, provider_id),
    constraint provider_watermarks_workspace_id_provider_id_fkey FOREIGN KEY (workspace_id, provider_id) REFERENCES providers(workspace_id, id) ON DELETE CASCADE
) with (fillfactor=50);

create table providers (
    workspace_id uuid not null,
    id uuid not null,
    name text not null,
    channel text not null,
    kind text not null,
    config jsonb not null,
    secrets bytea,
    rate_per_second double precision,
    receives boolean not null default false,
    version integer not null default 1,
    created_at timestamp with time zone not null default now(),
    updated_at timestamp with time zone not null default now(),
    constraint providers_pkey PRIMARY KEY (workspace_id, id),
    constraint providers_name UNIQUE (workspace_id, name),
    constraint providers_channel_check CHECK ((channel = ANY (ARRAY['email'::text, 'sms'::text, 'push'::text]))),
    constraint providers_name_check CHECK (((length(name) >= 1) AND (length(name) <= 200))),
    constraint providers_rate_per_second_check CHECK ((rate_per_second > (0)::double precision)),
    constraint providers_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(id)
);

create table refusals (
    workspace_id uuid not null,
    flow_id uuid not null,
    key uuid not null,
    profile_key text not null,
    reason text not null,
    detail text,
    event_key uuid,
    enrollment_id uuid,
    source text not null,
    at timestamp with time zone not null default now(),
    constraint refusals_pkey PRIMARY KEY (workspace_id, flow_id, key),
    constraint refusals_reason CHECK ((reason = ANY (ARRAY['already_enrolled'::text, 'already_active'::text, 'filtered'::text, 'condition_error'::text, 'paused'::text, 'not_live'::text, 'no_profile'::text, 'missing_field'::text, 'too_many_active'::text])))
);

create table releases (
    workspace_id uuid not null,
    origin_id uuid not null,
    constraint releases_pkey PRIMARY KEY (workspace_id, origin_id)
);

create table resolutions (
    workspace_id uuid not null,
    origin_id uuid not null,
    key uuid not null,
    resolution text not null,
    note text not null default ''::text,
    api_key_id uuid,
    at timestamp with time zone not null default now(),
    constraint resolutions_pkey PRIMARY KEY (workspace_id, origin_id, key),
    constraint resolutions_resolution_check CHECK ((resolution = ANY (ARRAY['sent'::text, 'not_sent'::text])))
);

create table settings (
    name text not null,
    value text not null,
    started_at timestamp with time zone not null,
    seen_at timestamp with time zone not null default now(),
    constraint settings_pkey PRIMARY KEY (name, value),
    constraint settings_name CHECK ((name ~ '^LEMMA_[A-Z0-9_]+$'::text)),
    constraint settings_public_url CHECK (((name <> 'LEMMA_PUBLIC_URL'::text) OR (value ~ '^https?://'::text)))
);

create table settlement_queue (
    workspace_id uuid not null,
    settled_at timestamp with time zone not null,
    batch_id uuid not null,
    ordinal smallint not null,
    read_until timestamp with time zone,
    constraint settlement_queue_pkey PRIMARY KEY (workspace_id, settled_at, batch_id, ordinal)
) with (fillfactor=50, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=5000);

create table soft_bounces (
    workspace_id uuid not null,
    key uuid not null,
    messages uuid[] not null,
    times timestamp with time zone[] not null,
    delivered_at timestamp with time zone,
    constraint soft_bounces_pkey PRIMARY KEY (workspace_id, key),
    constraint soft_bounces_times CHECK ((cardinality(messages) = cardinality(times))),
    constraint soft_bounces_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(id)
) with (fillfactor=80);

create table suppression_filters (
    workspace_id uuid not null,
    part integer not null,
    parts integer not null,
    form integer not null,
    pairs integer not null,
    capacity integer not null,
    bits bytea not null,
    seen text generated always as (filter_snapshot()) stored,
    constraint suppression_filters_pkey PRIMARY KEY (workspace_id, part),
    constraint suppression_filters_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(id)
);

create table suppressions (
    workspace_id uuid not null,
    key uuid not null,
    cause text not null,
    id uuid not null,
    channel text not null,
    address text not null,
    detail text not null default ''::text,
    created_at timestamp with time zone not null default now(),
    written_by xid8 not null generated always as (writing_transaction()) stored,
    constraint suppressions_pkey PRIMARY KEY (workspace_id, key, cause),
    constraint suppressions_cause CHECK ((cause = ANY (ARRAY['hard_bounce'::text, 'soft_bounces'::text, 'complaint'::text, 'token_unregistered'::text, 'unsubscribed'::text, 'manual'::text]))),
    constraint suppressions_channel_check CHECK ((channel = ANY (ARRAY['email'::text, 'sms'::text, 'push'::text]))),
    constraint suppressions_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(id)
);

create table template_versions (
    workspace_id uuid not null,
    template_id uuid not null,
    version integer not null,
    subject text not null,
    html text not null,
    text text not null,
    link text not null default ''::text,
    data jsonb not null default '{}'::jsonb,
    track_opens boolean,
    track_clicks boolean,
    variables text[] not null,
    request uuid,
    created_at timestamp with time zone not null default now(),
    constraint template_versions_pkey PRIMARY KEY (workspace_id, template_id, version),
    constraint template_versions_request UNIQUE (workspace_id, template_id, request),
    constraint template_versions_version_check CHECK ((version >= 1)),
    constraint template_versions_workspace_id_template_id_fkey FOREIGN KEY (workspace_id, template_id) REFERENCES templates(workspace_id, id) ON DELETE CASCADE
);

create table templates (
    workspace_id uuid not null,
    id uuid not null,
    name text not null,
    channel text not null,
    version integer not null default 1,
    revision integer not null default 1,
    created_at timestamp with time zone not null default now(),
    updated_at timestamp with time zone not null default now(),
    constraint templates_pkey PRIMARY KEY (workspace_id, id),
    constraint templates_name UNIQUE (workspace_id, name),
    constraint templates_channel_check CHECK ((channel = ANY (ARRAY['email'::text, 'sms'::text, 'push'::text]))),
    constraint templates_name_check CHECK (((length(name) >= 1) AND (length(name) <= 200))),
    constraint templates_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(id)
);

create table topic_unsubscribes (
    workspace_id uuid not null,
    topic_id uuid not null,
    key uuid not null,
    created_at timestamp with time zone not null default now(),
    written_by xid8 not null generated always as (writing_transaction()) stored,
    constraint topic_unsubscribes_pkey PRIMARY KEY (workspace_id, topic_id, key),
    constraint topic_unsubscribes_workspace_id_topic_id_fkey FOREIGN KEY (workspace_id, topic_id) REFERENCES topics(workspace_id, id) ON DELETE CASCADE
);

create table topics (
    workspace_id uuid not null,
    id uuid not null,
    name text not null,
    description text not null default ''::text,
    version integer not null default 1,
    created_at timestamp with time zone not null default now(),
    updated_at timestamp with time zone not null default now(),
    constraint topics_pkey PRIMARY KEY (workspace_id, id),
    constraint topics_name UNIQUE (workspace_id, name),
    constraint topics_name_check CHECK (((length(name) >= 1) AND (length(name) <= 200))),
    constraint topics_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(id)
);

create table tracking_events (
    workspace_id uuid not null,
    origin_id uuid not null,
    key uuid not null,
    id uuid not null,
    type text not null,
    link integer not null,
    times integer not null default 1,
    machine text,
    occurred_at timestamp with time zone not null,
    constraint tracking_events_pkey PRIMARY KEY (workspace_id, origin_id, key, id),
    constraint tracking_events_machine CHECK ((machine = ANY (ARRAY['apple_privacy'::text, 'gmail_proxy'::text, 'yahoo_proxy'::text, 'prefetch'::text, 'scanner'::text, 'too_fast'::text, 'several_links'::text, 'probed_before'::text, 'flood'::text]))),
    constraint tracking_events_type CHECK ((type = ANY (ARRAY['opened'::text, 'clicked'::text, 'probed'::text, 'converted'::text, 'unsubscribed'::text])))
) partition by RANGE (origin_id);

create table tracking_events_default partition of tracking_events default;

create table tracking_hosts (
    host text not null,
    workspace_id uuid,
    created_at timestamp with time zone not null default now(),
    constraint tracking_hosts_pkey PRIMARY KEY (host),
    constraint tracking_hosts_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(id)
);

create table tracking_queue (
    workspace_id uuid not null,
    origin_id uuid not null,
    key uuid not null,
    id uuid not null,
    type text not null,
    link integer not null default 0,
    times integer not null default 1,
    machine text,
    occurred_at timestamp with time zone not null,
    recorded_at timestamp with time zone not null default now(),
    constraint tracking_queue_pkey PRIMARY KEY (workspace_id, origin_id, key, id),
    constraint tracking_queue_times CHECK ((times > 0)),
    constraint tracking_queue_type CHECK ((type = ANY (ARRAY['opened'::text, 'clicked'::text, 'probed'::text, 'converted'::text, 'unsubscribed'::text])))
) with (autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=5000);

create table trigger_events (
    workspace_id uuid not null,
    key uuid not null,
    source_id text,
    profile_key text not null,
    name text not null,
    properties text not null default '{}'::text,
    occurred_at timestamp with time zone not null,
    received_at timestamp with time zone not null default now(),
    constraint trigger_events_once PRIMARY KEY (workspace_id, key)
);

create table webhook_endpoints (
    workspace_id uuid not null,
    id uuid not null,
    name text not null,
    url text not null,
    secret bytea not null,
    subscriptions jsonb not null default '[]'::jsonb,
    sequence bigint not null default 0,
    status text not null default 'enabled'::text,
    status_reason text,
    enabled_at timestamp with time zone not null default now(),
    disabled_at timestamp with time zone,
    failing_since timestamp with time zone,
    version integer not null default 1,
    created_at timestamp with time zone not null default now(),
    updated_at timestamp with time zone not null default now(),
    constraint webhook_endpoints_pkey PRIMARY KEY (workspace_id, id),
    constraint webhook_endpoints_name UNIQUE (workspace_id, name),
    constraint webhook_endpoints_disabled CHECK (((status = 'disabled'::text) = ((disabled_at IS NOT NULL) AND (status_reason IS NOT NULL)))),
    constraint webhook_endpoints_name_check CHECK (((length(name) >= 1) AND (length(name) <= 200))),
    constraint webhook_endpoints_status CHECK ((status = ANY (ARRAY['enabled'::text, 'disabled'::text]))),
    constraint webhook_endpoints_url_check CHECK (((length(url) >= 1) AND (length(url) <= 2000))),
    constraint webhook_endpoints_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES workspaces(id)
) with (fillfactor=70);

create table webhook_subscriptions (
    workspace_id uuid not null,
    type text not null,
    endpoint_id uuid not null,
    constraint webhook_subscriptions_pkey PRIMARY KEY (workspace_id, type, endpoint_id),
    constraint webhook_subscriptions_type CHECK ((type = ANY (ARRAY['notification.sent'::text, 'notification.delivered'::text, 'notification.bounced'::text, 'notification.complained'::text, 'notification.failed'::text, 'notification.skipped'::text, 'notification.orphaned'::text, 'notification.opened'::text, 'notification.clicked'::text, 'notification.unsubscribed'::text, 'campaign.started'::text, 'campaign.paused'::text, 'campaign.completed'::text, 'campaign.failed'::text, 'iteration.decided'::text, 'iteration.inconclusive'::text, 'enrollment.started'::text, 'enrollment.completed'::text, 'enrollment.exited'::text, 'provider.failing'::text, 'suppression.added'::text]))),
    constraint webhook_subscriptions_workspace_id_endpoint_id_fkey FOREIGN KEY (workspace_id, endpoint_id) REFERENCES webhook_endpoints(workspace_id, id) ON DELETE CASCADE
);

create table workspaces (
    id uuid not null,
    name text not null,
    page jsonb not null default '{}'::jsonb,
    tracking_url text not null default ''::text,
    lock_for interval not null default '00:02:00'::interval,
    seal_for interval not null default '06:00:00'::interval,
    strategy text not null default 'at_most_once'::text,
    version integer not null default 1,
    created_at timestamp with time zone not null default now(),
    constraint workspaces_pkey PRIMARY KEY (id),
    constraint workspaces_name UNIQUE (name),
    constraint workspaces_key_times CHECK (((lock_for >= '00:00:01'::interval) AND (lock_for <= '01:00:00'::interval) AND (seal_for >= '00:00:01'::interval) AND (seal_for <= '72:00:00'::interval))),
    constraint workspaces_name_check CHECK (((length(name) >= 1) AND (length(name) <= 200))),
    constraint workspaces_strategy_check CHECK ((strategy = ANY (ARRAY['at_most_once'::text, 'at_least_once'::text])))
);

-- view notification_status (
--     workspace_id uuid,
--     origin_id uuid,
--     key uuid,
--     batch_id uuid,
--     ordinal smallint,
--     profile_key text,
--     address text,
--     created_at timestamp with time zone,
--     current_batch_id uuid,
--     provider_id uuid,
--     content_id uuid,
--     due_at timestamp with time zone,
--     expires_at timestamp with time zone,
--     attempts integer,
--     status text,
--     reason text,
--     ended_at timestamp with time zone,
--     code smallint,
--     carrier_id text,
--     detail text,
--     resolution text,
--     resolved_at timestamp with time zone,
--     enrollment_id uuid,
--     flow_id uuid,
--     node text,
--     channel text,
--     metadata text,
--     outcome text
-- )

CREATE INDEX attempts_ended_badly ON ONLY attempts USING btree (workspace_id, batch_id, ordinal) WHERE (outcome <> 'accepted'::text);
CREATE INDEX attempts_settled ON ONLY attempts USING btree (at) WHERE ((basis = 'evidence'::text) AND (outcome = 'accepted'::text));
CREATE INDEX audiences_data_source ON audiences USING btree (workspace_id, data_source_id) WHERE (data_source_id IS NOT NULL);
CREATE INDEX audit_log_resource ON ONLY audit_log USING btree (workspace_id, resource_id, id) WHERE (resource_id <> ''::text);
CREATE INDEX batch_log_batch ON ONLY batch_log USING btree (workspace_id, batch_id, at);
CREATE INDEX batches_by_due ON ONLY batches USING btree (workspace_id, due_at) WHERE ((status = 'ready'::text) AND (gate = 'open'::text) AND ((get_byte(uuid_send(origin_id), 6) >> 4) <> 8));
CREATE INDEX batches_derived ON ONLY batches USING btree (workspace_id, origin_id, root_id) WHERE (id <> root_id);
CREATE INDEX batches_direct_by_due ON ONLY batches USING btree (workspace_id, due_at) WHERE ((status = 'ready'::text) AND (gate = 'open'::text) AND ((get_byte(uuid_send(origin_id), 6) >> 4) = 8));
CREATE INDEX batches_expiring ON ONLY batches USING btree (workspace_id, expires_at) WHERE ((status = 'ready'::text) AND (expires_at IS NOT NULL));
CREATE INDEX batches_held ON ONLY batches USING btree (workspace_id, origin_id, id) WHERE ((status = ANY (ARRAY['ready'::text, 'leased'::text])) AND (gate = 'held'::text));
CREATE INDEX batches_leased ON ONLY batches USING btree (id) WHERE (status = 'leased'::text);
CREATE INDEX batches_live ON ONLY batches USING btree (workspace_id, origin_id, id) WHERE (status = ANY (ARRAY['ready'::text, 'leased'::text]));
CREATE INDEX batches_never_claimed ON ONLY batches USING btree (workspace_id, provider_id, due_at) WHERE ((status = 'ready'::text) AND (gate = 'open'::text) AND (open IS NULL) AND ((get_byte(uuid_send(origin_id), 6) >> 4) <> 8));
CREATE INDEX batches_ready ON ONLY batches USING btree (due_at) WHERE ((status = 'ready'::text) AND (gate = 'open'::text));
CREATE INDEX blobs_cleaning ON blobs USING btree (store, workspace_id, clean_at) WHERE (status = 'ended'::text);
CREATE UNIQUE INDEX blobs_committed ON blobs USING btree (workspace_id, owner_id) WHERE (status = ANY (ARRAY['committed'::text, 'published'::text]));
CREATE INDEX blobs_leases ON blobs USING btree (lease_until) WHERE (status = 'registered'::text);
CREATE UNIQUE INDEX blobs_registered ON blobs USING btree (workspace_id, owner_id) WHERE (status = 'registered'::text);
CREATE INDEX campaigns_audience ON campaigns USING btree (workspace_id, audience_id) WHERE (audience_id IS NOT NULL);
CREATE INDEX campaigns_by_name ON campaigns USING btree (workspace_id, name, id);
CREATE INDEX campaigns_provider ON campaigns USING btree (workspace_id, provider_id) WHERE (provider_id IS NOT NULL);
CREATE INDEX campaigns_reading ON campaigns USING btree (workspace_id, id) WHERE (status = ANY (ARRAY['preparing'::text, 'sending'::text]));
CREATE INDEX campaigns_scheduled_at ON campaigns USING btree (scheduled_at) WHERE (status = 'scheduled'::text);
CREATE INDEX campaigns_settling ON campaigns USING btree (settle_at) WHERE (status = ANY (ARRAY['sending'::text, 'paused'::text]));
CREATE INDEX campaigns_template ON campaigns USING btree (workspace_id, template_id, template_version) WHERE (template_id IS NOT NULL);
CREATE INDEX campaigns_topic ON campaigns USING btree (workspace_id, topic_id) WHERE (topic_id IS NOT NULL);
CREATE INDEX contents_converting ON contents USING btree (workspace_id, conversion_event) WHERE (conversion_event IS NOT NULL);
CREATE INDEX contents_template ON contents USING btree (workspace_id, template_id, template_version) WHERE (template_id IS NOT NULL);
CREATE INDEX deliveries_failed ON ONLY deliveries USING btree (workspace_id, origin_id, state, key) WHERE (rank <> 4);
CREATE UNIQUE INDEX enrollments_active ON enrollments USING btree (workspace_id, profile_key, flow_id, overlap_key) WHERE (status = 'active'::text);
CREATE INDEX enrollments_blocked ON enrollments USING btree (workspace_id, flow_id, resume_at) WHERE (blocked_reason IS NOT NULL);
CREATE INDEX enrollments_past ON enrollments USING btree (workspace_id, profile_key, flow_id) WHERE (status <> 'active'::text);
CREATE INDEX enrollments_waiting ON enrollments USING btree (shard, flow_id, workspace_id, resume_at) WHERE (resume_at IS NOT NULL);
CREATE INDEX events_out_over ON events_out USING btree (published_at) WHERE (published_at IS NOT NULL);
CREATE INDEX events_out_pending ON events_out USING btree (workspace_id, occurred_at, id) WHERE (published_at IS NULL);
CREATE INDEX exports_expiring ON exports USING btree (expires_at) WHERE (expires_at IS NOT NULL);
CREATE INDEX exports_open ON exports USING btree (retry_at) WHERE (status = ANY (ARRAY['queued'::text, 'running'::text, 'publishing'::text]));
CREATE INDEX fanouts_leased ON fanouts USING btree (workspace_id) WHERE (leased_by IS NOT NULL);
CREATE INDEX flow_moves_open ON flow_moves USING btree (retry_at) WHERE (finished_at IS NULL);
CREATE INDEX flow_origins_flow ON flow_origins USING btree (workspace_id, flow_id);
CREATE INDEX flow_shards_due ON flow_shards USING btree (next_due_at) WHERE (next_due_at IS NOT NULL);
CREATE INDEX flow_uses_audience ON flow_uses USING btree (workspace_id, audience_id) WHERE (audience_id IS NOT NULL);
CREATE INDEX flow_uses_data_source ON flow_uses USING btree (workspace_id, data_source_id) WHERE (data_source_id IS NOT NULL);
CREATE INDEX flow_uses_endpoint ON flow_uses USING btree (workspace_id, endpoint_id) WHERE (endpoint_id IS NOT NULL);
CREATE INDEX flow_uses_provider ON flow_uses USING btree (workspace_id, provider_id) WHERE (provider_id IS NOT NULL);
CREATE INDEX flow_uses_template ON flow_uses USING btree (workspace_id, template_id, template_version) WHERE (template_id IS NOT NULL);
CREATE INDEX flow_uses_topic ON flow_uses USING btree (workspace_id, topic_id) WHERE (topic_id IS NOT NULL);
CREATE INDEX flows_by_name ON flows USING btree (workspace_id, name, id);
CREATE INDEX flows_draining ON flows USING btree (workspace_id, id) WHERE (status = 'draining'::text);
CREATE UNIQUE INDEX flows_name ON flows USING btree (workspace_id, name) WHERE (status <> 'archived'::text);
CREATE INDEX idempotency_keys_age ON idempotency_keys USING btree (created_at);
CREATE INDEX idempotency_keys_excess ON idempotency_keys USING btree (workspace_id) INCLUDE (excess) WHERE (excess IS NOT NULL);
CREATE INDEX iteration_variants_template ON iteration_variants USING btree (workspace_id, template_id, template_version) WHERE (template_id IS NOT NULL);
CREATE INDEX iterations_counting ON iterations USING btree (workspace_id, event_name) WHERE ((event_name IS NOT NULL) AND (status = ANY (ARRAY['sampling'::text, 'running'::text, 'evaluating'::text])));
CREATE INDEX iterations_data_source ON iterations USING btree (workspace_id, data_source_id) WHERE (data_source_id IS NOT NULL);
CREATE INDEX iterations_evaluated ON iterations USING btree (cut_off_at) WHERE (status = ANY (ARRAY['running'::text, 'evaluating'::text]));
CREATE INDEX iterations_guarded ON iterations USING btree (guardrail_at) WHERE ((guardrail_at IS NOT NULL) AND (status = ANY (ARRAY['sampling'::text, 'running'::text])));
CREATE INDEX iterations_inconclusive ON iterations USING btree (workspace_id) WHERE (status = 'inconclusive'::text);
CREATE INDEX iterations_measured ON iterations USING btree (measure_at) WHERE (status = ANY (ARRAY['sampling'::text, 'running'::text]));
CREATE UNIQUE INDEX link_keys_id ON link_keys USING btree (workspace_id, id);
CREATE INDEX notifications_batch ON ONLY notifications USING btree (workspace_id, origin_id, batch_id) WHERE (batch_id IS NOT NULL);
CREATE INDEX notifications_converting ON ONLY notifications USING btree (workspace_id, profile_key) WHERE converts;
CREATE INDEX notifications_skipped ON ONLY notifications USING btree (workspace_id, origin_id, key) WHERE (skip_reason IS NOT NULL);
CREATE INDEX notifications_unsubscribed ON ONLY notifications USING btree (workspace_id, origin_id, profile_key) WHERE (skip_reason = 'unsubscribed'::text);
CREATE INDEX outbox_by_event ON outbox USING btree (workspace_id, body_of) WHERE (body_of IS NOT NULL);
CREATE INDEX outbox_ended ON outbox USING btree (endpoint_id, status, finished_at, id) WHERE (status <> 'pending'::text);
CREATE INDEX outbox_enrollment ON outbox USING btree (workspace_id, enrollment_id) WHERE (enrollment_id IS NOT NULL);
CREATE INDEX outbox_over ON outbox USING btree (finished_at) WHERE (status <> 'pending'::text);
CREATE INDEX outbox_ready ON outbox USING btree (workspace_id, endpoint_id, due_at) WHERE ((status = 'pending'::text) AND (NOT waits));
CREATE UNIQUE INDEX outbox_sequence ON outbox USING btree (workspace_id, endpoint_id, sequence) WHERE (sequence IS NOT NULL);
CREATE INDEX outbox_waiting ON outbox USING btree (workspace_id, endpoint_id, due_at) WHERE ((status = 'pending'::text) AND waits);
CREATE INDEX outbox_woken ON outbox USING btree (due_at) WHERE ((status = 'pending'::text) AND waits);
CREATE INDEX provider_events_age ON ONLY provider_events USING btree (recorded_at) WHERE (batch_id IS NULL);
CREATE UNIQUE INDEX provider_events_once ON ONLY provider_events USING btree (workspace_id, origin_id, provider_id, source, source_event_id) WHERE (source_event_id <> 'unknown'::text);
CREATE INDEX provider_events_row ON ONLY provider_events USING btree (workspace_id, batch_id, ordinal, kind, attempt, occurred_at) WHERE (batch_id IS NOT NULL);
CREATE INDEX provider_events_without_id ON ONLY provider_events USING btree (workspace_id, batch_id, ordinal, type) WHERE ((source_event_id = 'unknown'::text) AND (batch_id IS NOT NULL));
CREATE INDEX providers_id ON providers USING btree (id);
CREATE INDEX refusals_age ON refusals USING btree (at);
CREATE INDEX refusals_behind ON refusals USING btree (workspace_id, enrollment_id, at) WHERE (enrollment_id IS NOT NULL);
CREATE INDEX refusals_profile ON refusals USING btree (workspace_id, flow_id, profile_key, at);
CREATE INDEX refusals_reason ON refusals USING btree (workspace_id, flow_id, reason, at);
CREATE INDEX resolutions_sent ON resolutions USING btree (at) WHERE ((resolution = 'sent'::text) AND (api_key_id IS NULL));
CREATE UNIQUE INDEX suppressions_id ON suppressions USING btree (workspace_id, id);
CREATE INDEX suppressions_written_by ON suppressions USING btree (workspace_id, written_by);
CREATE INDEX topic_unsubscribes_written_by ON topic_unsubscribes USING btree (workspace_id, written_by);
CREATE INDEX tracking_hosts_of ON tracking_hosts USING btree (workspace_id);
CREATE INDEX tracking_queue_due ON tracking_queue USING btree (workspace_id, occurred_at) WHERE (times > 0);
CREATE INDEX trigger_events_age ON trigger_events USING btree (received_at);
CREATE INDEX trigger_events_profile ON trigger_events USING btree (workspace_id, profile_key, name, received_at);
CREATE INDEX webhook_endpoints_failing ON webhook_endpoints USING btree (failing_since) WHERE ((failing_since IS NOT NULL) AND (status = 'enabled'::text));
CREATE INDEX webhook_subscriptions_endpoint ON webhook_subscriptions USING btree (workspace_id, endpoint_id);

CREATE TRIGGER audit_log_append_only BEFORE DELETE OR UPDATE ON public.audit_log FOR EACH ROW EXECUTE FUNCTION audit_log_append_only();
CREATE OR REPLACE FUNCTION public.audit_log_append_only()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
begin
    raise exception 'rows of the audit log do not change' using errcode = 'check_violation';
end
$function$

CREATE TRIGGER audit_log_append_only BEFORE DELETE OR UPDATE ON public.audit_log_default FOR EACH ROW EXECUTE FUNCTION audit_log_append_only();
CREATE OR REPLACE FUNCTION public.audit_log_append_only()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
begin
    raise exception 'rows of the audit log do not change' using errcode = 'check_violation';
end
$function$

CREATE TRIGGER iterations_forward BEFORE UPDATE ON public.iterations FOR EACH ROW EXECUTE FUNCTION iterations_forward();
CREATE OR REPLACE FUNCTION public.iterations_forward()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
declare
    statuses constant text[] := array['draft', 'sampling', 'running', 'evaluating', 'inconclusive', 'decided', 'rolling_out',
        'completed', 'cancelled'];
begin
    if array_position(statuses, new.status) < array_position(statuses, old.status)
        or old.status = 'completed' and new.status <> old.status then
        raise exception 'an iteration that is % does not become %', old.status, new.status using errcode = 'check_violation';
    end if;
    if old.winner is not null and new.winner is distinct from old.winner then
        raise exception 'the winner of an iteration does not change' using errcode = 'check_violation';
    end if;
    return new;
end
$function$

comment on constraint attempts_bound on attempts is 'SendingEngine!BoundedSendCount';
comment on constraint attempts_final on attempts is 'SendingEngine!TerminalStable';
comment on constraint attempts_pkey on attempts is 'SendingEngine!OneOutcomePerAttempt, Batch!OneRowPerOrdinal';
comment on constraint audit_log_pkey on audit_log is 'a change is recorded once';
comment on constraint batches_attempt on batches is 'SendingEngine!BoundedSendCount, SendingEngine!AtMostOnceStrategy';
comment on constraint batches_counts on batches is 'Campaign!CountsBalance';
comment on constraint batches_end on batches is 'Batch!NoRowLeftBehind';
comment on constraint batches_lease on batches is 'SendingEngine!OnlyOwnerCommits';
comment on constraint batches_pkey on batches is 'SendingEngine!OnlyOwnerCommits';
comment on constraint batches_root on batches is 'Batch!OneRowPerOrdinal';
comment on constraint blobs_content on blobs is 'SideEffects!PublishedIsTheCommitted';
comment on constraint blobs_lease on blobs is 'SideEffects!CommittedIsKept';
comment on constraint blobs_name on blobs is 'SideEffects!PublishedIsTheCommitted';
comment on constraint blobs_pkey on blobs is 'SideEffects!CommittedOnce';
comment on constraint conversion_positions_pkey on conversion_positions is 'a conversion is counted once';
comment on constraint conversion_queue_pkey on conversion_queue is 'a conversion is counted once';
comment on constraint deliveries_pkey on deliveries is 'ProviderEvents!RankOnlyRises';
comment on constraint deliveries_rank on deliveries is 'ProviderEvents!RankOnlyRises';
comment on constraint direct_keys_attempts on direct_keys is 'KeyStates!AtMostOnce, KeyStates!AtMostTwice';
comment on constraint direct_keys_pkey on direct_keys is 'KeyStates!OneAtATime, KeyStates!AtMostOnce';
comment on constraint engagement_counts_pkey on engagement_counts is 'an open or click is counted once';
comment on constraint engagements_pkey on engagements is 'a notification is counted once as opened, clicked, converted and unsubscribed';
comment on constraint enrollment_keys_once on enrollment_keys is 'FlowEngine!OneEnrollmentPerKey';
comment on constraint enrollment_steps_pkey on enrollment_steps is 'FlowEngine!EachStepOnce';
comment on constraint enrollments_due on enrollments is 'WaitResume!DueLeadsToResumed';
comment on constraint enrollments_pkey on enrollments is 'FlowEngine!EachStepOnce';
comment on constraint event_queue_pkey on event_queue is 'ProviderEvents!EveryEventApplied';
comment on constraint events_out_body on events_out is 'Outbox!ConsistentOutput';
comment on constraint events_out_pkey on events_out is 'Outbox!NoDuplicatedProcessing';
comment on constraint fanout_chunks_pkey on fanout_chunks is 'Campaign!CountsBalance';
comment on constraint flow_versions_pkey on flow_versions is 'FlowEngine!PublishMovesNoEnrollment';
comment on constraint iterations_claim on iterations is 'CampaignIteration!WinnerOnce';
comment on constraint iterations_decided on iterations is 'CampaignIteration!RolloutIsRecorded';
comment on constraint iterations_winner on iterations is 'CampaignIteration!WinnerCompeted';
comment on constraint link_counts_pkey on link_counts is 'an open or click is counted once';
comment on constraint link_keys_pkey on link_keys is 'a number of a link key has one secret';
comment on constraint notifications_pkey on notifications is 'Campaign!AtMostOneNotificationPerRecipient, FlowEngine!AtMostOneNotificationPerNode';
comment on constraint notifications_place on notifications is 'Campaign!CountsBalance';
comment on constraint outbox_finished on outbox is 'Outbox!NoLostMessages';
comment on constraint outbox_of_event on outbox is 'Outbox!ConsistentOutput';
comment on constraint outbox_pkey on outbox is 'Outbox!NoDuplicatedProcessing';
comment on constraint provider_watermarks_pkey on provider_watermarks is 'SendingEngine!SingleSendUnderAssumptions';
comment on constraint settings_pkey on settings is 'a value of a setting has one row';
comment on constraint settlement_queue_pkey on settlement_queue is 'a conversion is counted once';
comment on constraint suppression_filters_pkey on suppression_filters is 'a filter of suppressions has each part once';
comment on constraint suppressions_pkey on suppressions is 'a suppression is stored once';
comment on constraint topic_unsubscribes_pkey on topic_unsubscribes is 'a recipient unsubscribes from a topic once';
comment on constraint tracking_events_pkey on tracking_events is 'an open or click is counted once';
comment on constraint tracking_hosts_pkey on tracking_hosts is 'a host of links belongs to one workspace';
comment on constraint tracking_queue_pkey on tracking_queue is 'an open or click is counted once';
comment on constraint trigger_events_once on trigger_events is 'a repeated event is recorded once';
comment on index blobs_committed is 'SideEffects!CommittedOnce';
comment on index blobs_registered is 'SideEffects!CommittedOnce';
comment on index enrollments_active is 'FlowEngine!AtMostOneActiveEnrollment';
comment on index outbox_sequence is 'Outbox!NoDuplicatedProcessing';
comment on index provider_events_once is 'ProviderEvents!AppliedOnce';
comment on trigger audit_log_append_only on audit_log is 'rows of the audit log do not change';
comment on trigger iterations_forward on iterations is 'CampaignIteration!OnlyForward';

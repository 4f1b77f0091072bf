-- +goose Up
-- Flows and their versions. A published version never changes.

create table flows (
    workspace_id   uuid not null references workspaces (id),
    id             uuid not null,
    name           text not null check (length(name) between 1 and 200),
    status         text not null default 'draft'
        constraint flows_status check (status in ('draft', 'live', 'paused', 'draining', 'archived')),
    status_reason  text,                      -- why Lemma paused it, or cancelled the messages of an archived flow
    status_detail  text,
    versions       int not null default 0,    -- how many were ever made; the number of a deleted draft is not used again
    live_version   int,                       -- the version of new enrollments; publishing changes it and nothing else
    metadata       jsonb not null default '{}',
    overlapped     boolean not null default false, -- a version that allowed overlap was live once
    recurred       boolean not null default false, -- versions with different recurrences were live, so keys follow several policies
    had_audience   boolean not null default false, -- a version with an audience was live once: enrollments may be refused at their entry
    -- Enrollments that were due when a pause ended (resumed_at) are released
    -- evenly until catch_up_until, in the order in which they became due.
    -- Resuming updates no enrollment; flow_shards counts them.
    paused_at      timestamptz,               -- when the last pause began
    resumed_at     timestamptz,               -- when it ended; null while it lasts
    catch_up_until timestamptz,               -- in a pause that interrupted a release: when that release would have ended
    version        int not null default 1,    -- ETag
    created_at     timestamptz not null default now(),
    updated_at     timestamptz not null default now(),
    primary key (workspace_id, id),
    constraint flows_live check (status in ('draft', 'archived') or live_version is not null)
);
-- Names are unique among flows that are not archived.
create unique index flows_name on flows (workspace_id, name) where status <> 'archived';
create index flows_by_name on flows (workspace_id, name, id); -- lists by name, archived flows included
create index flows_draining on flows (workspace_id, id) where status = 'draining';

create table flow_versions (
    workspace_id      uuid not null,
    flow_id           uuid not null,
    version           int not null check (version >= 1),
    status            text not null default 'draft'
        constraint flow_versions_status check (status in ('draft', 'published')), -- only a draft may be edited
    definition        text not null,          -- the JSON document
    revision          int not null default 1, -- ETag of a draft; it changes with the flow's own
    request           uuid not null,          -- id of the request that made it; of the first version, the flow's id
    created_at        timestamptz not null default now(),
    updated_at        timestamptz not null default now(),
    published_at      timestamptz,            -- the first time
    nodes             text[],                 -- their names, of a published version
    recheck_failed_at timestamptz,            -- since when its old notifications cannot be read again from the audience
    recheck_reason    text,                   -- the cause, as a code
    recheck_detail    text,
    primary key (workspace_id, flow_id, version),
    constraint flow_versions_request unique (workspace_id, flow_id, request), -- a repeated request makes one version
    foreign key (workspace_id, flow_id) references flows (workspace_id, id) on delete cascade,
    constraint flow_versions_published check (
        (status = 'published') = (published_at is not null) and (status = 'published') = (nodes is not null))
);
comment on constraint flow_versions_pkey on flow_versions is 'FlowEngine!PublishMovesNoEnrollment';
-- The two tables refer to each other.
alter table flows add constraint flows_live_version foreign key (workspace_id, id, live_version)
    references flow_versions (workspace_id, flow_id, version) deferrable initially deferred;

-- Actions on a flow, appended. The id is that of the request, so that a
-- repeated request has no effect.
create table flow_log (
    workspace_id uuid not null,
    flow_id      uuid not null,
    id           uuid not null,
    action       text not null constraint flow_log_action check (action in
        ('published', 'rolled_back', 'paused', 'resumed', 'drained', 'archived')),
    version      int,                         -- the live version after the action
    api_key_id   uuid,                        -- null: Lemma itself
    detail       jsonb not null default '{}',
    at           timestamptz not null default now(),
    constraint flow_log_pkey primary key (workspace_id, flow_id, id)
);

-- Which events which published version uses: as a trigger (the live version
-- enrolls on it), as an exit, or in a wait (any version that has active
-- enrollments). Written at publishing, so that flows are found by event name.
create table flow_listeners (
    workspace_id uuid not null,
    event        text not null,
    flow_id      uuid not null,
    version      int not null,
    use          text not null constraint flow_listeners_use check (use in ('trigger', 'exit', 'wait')),
    primary key (workspace_id, event, flow_id, version, use)
);

-- What a published version refers to, by node ('' is the version itself). The
-- foreign keys keep it from being deleted until the flow is archived, which
-- deletes the rows.
create table flow_uses (
    workspace_id     uuid not null,
    flow_id          uuid not null,
    version          int not null,
    node             text not null,
    audience_id      uuid,
    data_source_id   uuid,
    template_id      uuid,
    template_version int,
    provider_id      uuid,
    endpoint_id      uuid,
    topic_id         uuid,
    primary key (workspace_id, flow_id, version, node),
    foreign key (workspace_id, flow_id, version) references flow_versions (workspace_id, flow_id, version) on delete cascade,
    foreign key (workspace_id, audience_id) references audiences (workspace_id, id),
    foreign key (workspace_id, data_source_id) references data_sources (workspace_id, id),
    foreign key (workspace_id, template_id, template_version) references template_versions (workspace_id, template_id, version),
    foreign key (workspace_id, provider_id) references providers (workspace_id, id),
    foreign key (workspace_id, endpoint_id) references webhook_endpoints (workspace_id, id),
    foreign key (workspace_id, topic_id) references topics (workspace_id, id)
);
-- What a version uses is found when that is deleted, whose row is locked meanwhile.
create index flow_uses_audience on flow_uses (workspace_id, audience_id) where audience_id is not null;
create index flow_uses_data_source on flow_uses (workspace_id, data_source_id) where data_source_id is not null;
create index flow_uses_template on flow_uses (workspace_id, template_id, template_version) where template_id is not null;
create index flow_uses_provider on flow_uses (workspace_id, provider_id) where provider_id is not null;
create index flow_uses_endpoint on flow_uses (workspace_id, endpoint_id) where endpoint_id is not null;
create index flow_uses_topic on flow_uses (workspace_id, topic_id) where topic_id is not null;

-- The lease for executing one shard of a flow's enrollments. Two holders would
-- do no harm, since an enrollment moves by compare-and-set; the lease saves
-- work. The order of worked_at makes flows fair to each other.
create table flow_shards (
    workspace_id uuid not null,
    flow_id      uuid not null,
    shard        smallint not null,
    leased_by    text,
    lease_until  timestamptz,
    worked_at    timestamptz not null default '-infinity',
    retry_at     timestamptz not null default '-infinity',
    held         bigint not null default 0,   -- enrollments that were due when the last pause ended
    released     bigint not null default 0,   -- of these, how many were executed since
    next_due_at  timestamptz,                 -- no enrollment is due before; null: none advances, as the flow is not live or draining
    primary key (workspace_id, flow_id, shard),
    foreign key (workspace_id, flow_id) references flows (workspace_id, id) on delete cascade,
    constraint flow_shards_lease check ((leased_by is null) = (lease_until is null))
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
-- Workers read the shards whose time has come, so that idle ones cost nothing.
create index flow_shards_due on flow_shards (next_due_at) where next_due_at is not null;

-- Moves of active enrollments to another version, or out of the flow. A publish
-- with in_flight, a rollback or an archive inserts one row, and a worker then
-- moves the enrollments in chunks.
create table flow_moves (
    workspace_id uuid not null,
    flow_id      uuid not null,
    id           uuid not null,
    to_version   int,                         -- enrollments of this version stay as they are; null: none stays
    node_map     jsonb not null default '{}', -- node of the old version -> node of the new one, or null: exit
    exit_reason  text,                        -- set: the enrollments exit; null: they move
    moved        bigint not null default 0,
    exited       bigint not null default 0,
    retry_at     timestamptz not null default now(), -- the order in which moves are executed
    leased_by    text,
    lease_until  timestamptz,
    created_at   timestamptz not null default now(),
    finished_at  timestamptz,
    primary key (workspace_id, flow_id, id),
    constraint flow_moves_lease check ((leased_by is null) = (lease_until is null))
);
create index flow_moves_open on flow_moves (retry_at) where finished_at is null;

-- The schedule of a flow that polls an audience.
create table flow_polls (
    workspace_id uuid not null,
    flow_id      uuid not null,
    next_at      timestamptz not null default now(),
    leased_by    text,
    lease_until  timestamptz,
    failures     int not null default 0,
    last_error   text,
    last_at      timestamptz,                 -- of the last poll that read the whole audience
    rows_read    bigint,
    enrolled     bigint,
    refused      jsonb not null default '{}', -- reason -> profiles of the last poll
    primary key (workspace_id, flow_id),
    foreign key (workspace_id, flow_id) references flows (workspace_id, id) on delete cascade,
    constraint flow_polls_lease check ((leased_by is null) = (lease_until is null))
);

-- How many enrollments passed each node and how, counted in the transaction
-- that moves them. The shard keeps workers from updating the same rows.
create table flow_node_counts (
    workspace_id uuid not null,
    flow_id      uuid not null,
    version      int not null,
    node         text not null,
    event        text not null,
    next         text not null default '',    -- the path taken from a branch, a split or an answered webhook, or why a message was skipped
    shard        smallint not null,
    processed    bigint not null,
    primary key (workspace_id, flow_id, version, node, event, next, shard)
) with (fillfactor = 50);

-- +goose Down
drop table flow_node_counts;
drop table flow_polls;
drop table flow_moves;
drop table flow_shards;
drop table flow_uses;
drop table flow_listeners;
drop table flow_log;
drop table flow_versions, flows;

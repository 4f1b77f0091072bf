-- +goose Up
-- Journeys. Versions never change once they are published; the enrollment is
-- the only hot row, and it is narrow: what enrolled somebody and every step are
-- appended beside it.

create table webhook_endpoints (
    workspace_id uuid not null references workspaces (id),
    id           uuid not null,
    name         text not null check (length(name) between 1 and 200),
    url          text not null check (length(url) between 1 and 2000),
    secret       bytea not null,              -- sealed, and with it those that were rotated and still sign; the row's workspace and id are its additional data
    version      int not null default 1,
    created_at   timestamptz not null default now(),
    updated_at   timestamptz not null default now(),
    primary key (workspace_id, id),
    constraint webhook_endpoints_name unique (workspace_id, name)
);

create table flows (
    workspace_id  uuid not null references workspaces (id),
    id            uuid not null,
    name          text not null check (length(name) between 1 and 200),
    status        text not null default 'draft'
        constraint flows_status check (status in ('draft', 'live', 'paused', 'draining', 'archived')),
    status_reason text,                       -- why it is paused, when Lemma paused it
    status_detail text,
    versions      int not null default 0,     -- how many were ever made: the number of a draft that was deleted is given to no other
    live_version  int,                        -- what new enrollments follow; publishing flips it and nothing else
    metadata      jsonb not null default '{}',
    overlapped    boolean not null default false, -- a version that allowed overlap was live once
    recurred      boolean not null default false, -- versions with different recurrences were live: keys of enrollments are of several policies
    -- Who was due when a pause ended (resumed_at) is released evenly until
    -- catch_up_until, whoever was due first before the others: resuming touches no
    -- enrollment and floods nobody. The turns know how many they are.
    paused_at     timestamptz,                -- when the last pause began
    resumed_at    timestamptz,                -- when it ended; null while it lasts
    catch_up_until  timestamptz,                -- in a pause: when a release would have ended that the pause has come into
    version       int not null default 1,     -- ETag
    created_at    timestamptz not null default now(),
    updated_at    timestamptz not null default now(),
    primary key (workspace_id, id),
    constraint flows_live check (status in ('draft', 'archived') or live_version is not null)
);
-- An archived flow is at its end: it keeps its name for those who look back, and
-- not from another.
create unique index flows_name on flows (workspace_id, name) where status <> 'archived';
create index flows_by_name on flows (workspace_id, name, id); -- lists by name, archived ones too

create table flow_versions (
    workspace_id uuid not null,
    flow_id      uuid not null,
    version      int not null check (version >= 1),
    status       text not null default 'draft'
        constraint flow_versions_status check (status in ('draft', 'published')), -- a draft may be edited, a published version never
    definition   text not null,               -- the JSON document
    revision     int not null default 1,      -- ETag of a draft; the flow's own changes with it
    request      uuid not null,               -- that made it; of the first, the flow's id
    created_at   timestamptz not null default now(),
    updated_at   timestamptz not null default now(),
    published_at timestamptz,                 -- the first time
    recheck_failed_at timestamptz,            -- since when its messages that have waited for long cannot be read again from its audience
    recheck_reason text,                      -- why, with recheck_failed_at: a code
    recheck_detail text,
    primary key (workspace_id, flow_id, version),
    constraint flow_versions_request unique (workspace_id, flow_id, request), -- a repeated request makes one
    foreign key (workspace_id, flow_id) references flows (workspace_id, id) on delete cascade,
    constraint flow_versions_published check ((status = 'published') = (published_at is not null))
);
alter table flows add constraint flows_live_version foreign key (workspace_id, id, live_version)
    references flow_versions (workspace_id, flow_id, version) deferrable initially deferred;

-- What was done to a flow, by whom: appended. The id is that of the request
-- that asked, so that one whose answer was lost is not done a second time.
create table flow_log (
    workspace_id uuid not null,
    flow_id      uuid not null,
    id           uuid not null,
    action       text not null constraint flow_log_action check (action in
        ('published', 'rolled_back', 'paused', 'resumed', 'drained', 'archived')),
    version      int,                         -- the live version from then on
    api_key_id   uuid,                        -- null: Lemma itself
    detail       jsonb not null default '{}',
    at           timestamptz not null default now(),
    constraint flow_log_pkey primary key (workspace_id, flow_id, id)
);

-- What was asked of a campaign, for the same end: resuming or scheduling it a
-- second time could undo what somebody else did in between.
create table campaign_requests (
    workspace_id uuid not null,
    campaign_id  uuid not null,
    id           uuid not null,
    verb         text not null,
    at           timestamptz not null default now(),
    constraint campaign_requests_pkey primary key (workspace_id, campaign_id, id),
    foreign key (workspace_id, campaign_id) references campaigns (workspace_id, id) on delete cascade
);

-- Which events mean something to which published version: trigger (the live
-- version enrolls on it), exit or wait (any version with people in it). Written
-- when the version is published, so that an event finds its flows by name.
create table flow_listeners (
    workspace_id uuid not null,
    event        text not null,
    flow_id      uuid not null,
    version      int not null,
    use          text not null constraint flow_listeners_use check (use in ('trigger', 'exit', 'wait')),
    primary key (workspace_id, event, flow_id, version, use)
);

-- What a published version names, node by node ('' is the version itself), so
-- that it cannot be deleted from under those who are on the way. Gone when the
-- flow is archived.
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
    primary key (workspace_id, flow_id, version, node),
    foreign key (workspace_id, flow_id, version) references flow_versions (workspace_id, flow_id, version) on delete cascade,
    foreign key (workspace_id, audience_id) references audiences (workspace_id, id),
    foreign key (workspace_id, data_source_id) references data_sources (workspace_id, id),
    foreign key (workspace_id, template_id, template_version) references template_versions (workspace_id, template_id, version),
    foreign key (workspace_id, provider_id) references providers (workspace_id, id),
    foreign key (workspace_id, endpoint_id) references webhook_endpoints (workspace_id, id)
);

-- The right to advance a share of a flow's enrollments. Two at once would be
-- harmless (the enrollment moves by compare-and-set); the lease saves the work
-- and the order of worked_at is what is fair between flows.
create table flow_shards (
    workspace_id uuid not null,
    flow_id      uuid not null,
    shard         smallint not null,
    leased_by    text,
    lease_until  timestamptz,
    worked_at    timestamptz not null default '-infinity',
    retry_at     timestamptz not null default '-infinity',
    held         bigint not null default 0,   -- who was due when the last pause ended
    released     bigint not null default 0,   -- of these, since
    primary key (workspace_id, flow_id, shard),
    foreign key (workspace_id, flow_id) references flows (workspace_id, id) on delete cascade,
    constraint flow_shards_lease check ((leased_by is null) = (lease_until is null))
) with (fillfactor = 50);

-- People on the way to another version, or out of the flow: a publish with
-- in_flight, a rollback or an archive leaves one row, and enrollments are taken
-- over in lots until none is left.
create table flow_moves (
    workspace_id uuid not null,
    flow_id      uuid not null,
    id           uuid not null,
    to_version   int,                         -- whom it leaves alone, since they are there; null: nobody
    node_map     jsonb not null default '{}', -- node of the old version -> node of the new one, or null: exit
    exit_reason  text,                        -- set: they exit; null: they are moved
    moved        bigint not null default 0,
    exited       bigint not null default 0,
    retry_at     timestamptz not null default now(), -- the order in which moves are worked at
    leased_by    text,
    lease_until  timestamptz,
    created_at   timestamptz not null default now(),
    finished_at  timestamptz,
    primary key (workspace_id, flow_id, id),
    constraint flow_moves_lease check ((leased_by is null) = (lease_until is null))
);
create index flow_moves_open on flow_moves (retry_at) where finished_at is null;

-- An audience that is looked at on a schedule.
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
    refused      jsonb not null default '{}', -- reason -> people of the last poll
    primary key (workspace_id, flow_id),
    foreign key (workspace_id, flow_id) references flows (workspace_id, id) on delete cascade,
    constraint flow_polls_lease check ((leased_by is null) = (lease_until is null))
);

-- What customers' systems say that people did. The key is made of the sender's
-- own id, so that saying it twice is saying it once; it is fresh without one.
create table trigger_events (
    workspace_id uuid not null,
    key          uuid not null,
    source_id    text,                        -- the sender's id of the event, if it gave one
    profile_key  text not null,
    name         text not null,
    properties   text not null default '{}',  -- a JSON object
    occurred_at  timestamptz not null,        -- the event's own time: recurrence goes by it
    received_at  timestamptz not null default now(),
    constraint trigger_events_once primary key (workspace_id, key)
);
create index trigger_events_profile on trigger_events (workspace_id, profile_key, name, received_at);
create index trigger_events_age on trigger_events (received_at);

-- One profile's way through a flow. Moved by compare-and-set on node and step;
-- whoever finds it moved leaves it alone.
create table enrollments (
    workspace_id   uuid not null,
    id             uuid not null,
    flow_id        uuid not null,
    version        int not null,
    shard           smallint not null,         -- the share of the flow that it belongs to
    uniqueness_key uuid not null,             -- the recurrence policy is in it; held in enrollment_keys unless it was refused
    slot           uuid not null,             -- zero, or when the version allows overlap the enrollment's own id
    profile_key    text not null,
    status         text not null default 'active'
        constraint enrollments_status check (status in ('active', 'completed', 'exited', 'refused')),
    node           text not null,             -- where it stands; '' before the start node: the profile is yet to be looked at
    step           int not null default 0,    -- how often it was moved
    moved          boolean not null default false, -- an admin has put it on another node: one that it stands on may have acted already
    waiting_since  timestamptz,               -- when the wait of its node began; null: it has yet to enter the node
    resume_at      timestamptz,               -- when it is due, by the database's clock
    first_due_at      timestamptz,               -- when it first was due, the event came that it waited for, its wait was over, or it was moved, where that is not resume_at
    awaits         text,                      -- the event that it waits for
    matched_event          uuid,                      -- the event that it waited for, once that has come
    answer_step    int,                       -- WaitResume!AnswerEndsItsWait: the step whose webhook message it waits to be answered; null once it is
    failures       smallint not null default 0, -- times in a row that its data source failed it
    blocked_reason        text,                      -- what keeps it from going on
    source         text not null constraint enrollments_source check (source in ('event', 'audience', 'direct')),
    enrolled_at    timestamptz not null default now(),
    ended_at       timestamptz,
    exit_reason    text,
    constraint enrollments_pkey primary key (workspace_id, id),
    -- WaitResume!DueLeadsToResumed: who is on the way is due at some time
    constraint enrollments_due check ((status = 'active') = (resume_at is not null)),
    constraint enrollments_ended check ((status = 'active') = (ended_at is null))
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);
-- FlowEngine!AtMostOneActiveEnrollment; also how an event finds who is on the way
create unique index enrollments_active on enrollments (workspace_id, profile_key, flow_id, slot) where status = 'active';
-- The turn first and the workspace late, so that a planner without statistics
-- does not take it for a way to find somebody by workspace, flow or profile.
create index enrollments_waiting on enrollments (shard, flow_id, workspace_id, resume_at) where status = 'active';
-- Who waits for a source that failed: let go on when it answers again.
create index enrollments_blocked on enrollments (workspace_id, flow_id, resume_at) where blocked_reason is not null;
-- How a person's ended journeys are found. Only ended ones: an index that held
-- the others too would be written to at every step.
create index enrollments_past on enrollments (workspace_id, profile_key, flow_id) where status <> 'active';

-- Which enrollment holds a uniqueness key. A table of its own, because every
-- update of an enrollment would write to the index again. A key is written in
-- the statement that enrolls, and deleted when the enrollment is refused at the
-- entry, so that the trigger may come again.
create table enrollment_keys (
    workspace_id   uuid not null,
    flow_id        uuid not null,
    uniqueness_key uuid not null,
    enrollment_id  uuid not null,
    -- FlowEngine!OneEnrollmentPerKey
    constraint enrollment_keys_once primary key (flow_id, uniqueness_key, workspace_id)
);

-- What happened to an enrollment, step by step: appended. Step 0 is how it
-- came in, with the trigger's data.
create table enrollment_steps (
    workspace_id  uuid not null,
    enrollment_id uuid not null,
    step          int not null,
    version       int not null,
    node          text not null,
    event         text not null constraint enrollment_steps_event check (event in
        ('enrolled', 'refused', 'checked', 'sent', 'skipped', 'resumed', 'zone_unknown', 'timed_out', 'branched', 'split', 'webhook', 'answered',
         'moved', 'completed', 'exited')),
    data          text,                       -- a JSON object: what decided it
    at            timestamptz not null default now(),
    -- FlowEngine!EachStepOnce
    constraint enrollment_steps_pkey primary key (workspace_id, enrollment_id, step)
) partition by range (enrollment_id);
create table enrollment_steps_default partition of enrollment_steps default;

-- How many passed each node, and how: counted in the transaction that moves
-- them. Turn keeps workers out of each other's rows.
create table flow_node_counts (
    workspace_id uuid not null,
    flow_id      uuid not null,
    version      int not null,
    node         text not null,
    event        text not null,
    next         text not null default '',    -- of a branch, a split or an answered webhook: the way that they went; of a message that was skipped: the reason
    shard         smallint not null,
    processed       bigint not null,
    primary key (workspace_id, flow_id, version, node, event, next, shard)
) with (fillfactor = 50);

-- Every trigger that enrolled nobody, with the reason.
create table refusals (
    workspace_id  uuid not null,
    flow_id       uuid not null,
    key           uuid not null,              -- of the trigger: repeated, it is refused once
    profile_key   text not null,
    reason        text not null constraint refusals_reason check (reason in
        ('already_enrolled', 'already_active', 'filtered', 'condition_error', 'paused', 'not_live', 'no_profile', 'missing_field')),
    detail        text,
    event_key     uuid,                       -- the event that asked
    enrollment_id uuid,                       -- the one that stands in the way
    source        text not null,
    at            timestamptz not null default now(),
    constraint refusals_pkey primary key (workspace_id, flow_id, key)
);
create index refusals_profile on refusals (workspace_id, flow_id, profile_key, at);
create index refusals_reason on refusals (workspace_id, flow_id, reason, at); -- the newest, and how many there are
create index refusals_age on refusals (at);

-- The origins of a flow's notifications: one for each month in which people
-- enrolled, so that a journey's messages leave with the month that it began in.
create table flow_origins (
    workspace_id uuid not null,
    origin_id    uuid not null,
    flow_id      uuid not null,
    primary key (workspace_id, origin_id)
);
create index flow_origins_flow on flow_origins (workspace_id, flow_id);

-- Messages to customers' systems: written in the transaction that changes the
-- state, sent after it, the same bytes under the same id each time.
create table outbox (
    workspace_id uuid not null,
    id           uuid not null,               -- webhook-id
    endpoint_id  uuid not null,
    body         text not null,
    enrollment_id uuid,                       -- who waits for the answer, and at which step
    step         int,
    status        text not null default 'pending'
        constraint outbox_status check (status in ('pending', 'delivered', 'failed')),
    attempts     int not null default 0,
    status_code  int,                         -- of the last answer
    last_error   text,
    called_at    timestamptz,                 -- when the last call ended
    answered     boolean not null default false, -- pending: that answer ends it; what follows from it is yet to be written
    due_at       timestamptz not null default now(), -- leased: when the lease runs out
    leased_by    text,
    lease_until  timestamptz,
    created_at   timestamptz not null default now(),
    finished_at  timestamptz,
    -- Outbox!NoDuplicatedProcessing
    constraint outbox_pkey primary key (workspace_id, id),
    constraint outbox_lease check ((leased_by is null) = (lease_until is null) and (status = 'pending' or leased_by is null)),
    constraint outbox_finished check ((status = 'pending') = (finished_at is null))
) with (autovacuum_vacuum_scale_factor = 0.02);
-- Endpoints with something to be said are found by skipping from one to the
-- next, so that what waits for one that is dead is not read to find the others.
create index outbox_due on outbox (workspace_id, endpoint_id, due_at) where status = 'pending';
create index outbox_over on outbox (finished_at) where status <> 'pending';
-- What an endpoint took and did not take, newest first; a message is in it once
-- it has ended. Without the workspace, so that a planner without statistics does
-- not take it for a way to find messages by their ids.
create index outbox_ended on outbox (endpoint_id, status, finished_at, id) where status <> 'pending';
create index outbox_enrollment on outbox (workspace_id, enrollment_id) where enrollment_id is not null;

alter table notifications add column enrollment_id uuid, -- null for a campaign's
    add column content_id uuid; -- of who is skipped on a journey, and so has no batch: what would have been sent
alter table contents add column flow_id uuid, add column node text;

-- The same view, with whose journey and which node a flow's message belongs to.
create or replace view notification_status as
select n.workspace_id, n.origin_id, n.key, n.batch_id, n.ordinal, n.profile_key, n.address, n.created_at,
       b.id as current_batch_id, b.provider_id, b.content_id, b.due_at, b.expires_at,
       case
           when a.attempt is null then 0
           when a.basis = 'gate' or a.reason in ('first_attempt_accepted', 'first_attempt_rejected') then a.attempt - 1
           else a.attempt
       end as attempts,
       case
           when n.skip_reason is not null then 'skipped'
           when a.final and a.outcome = 'accepted' then 'sent'
           when a.final and a.reason = 'first_attempt_rejected' then 'failed'
           when a.final and (a.outcome = 'unknown' or a.attempt = 2) then 'orphaned'
           when a.final and a.outcome = 'skipped' then 'skipped'
           when a.final then 'failed'
           when b.status in ('cancelled', 'expired') and b.attempt = 2 then 'orphaned'
           when b.status = 'cancelled' then 'cancelled'
           when b.status = 'expired' then 'skipped'
           when b.status = 'leased' and n.ordinal <= b.called_through
                and not n.ordinal = any(b.deferred)
                and (b.open is null or n.ordinal = any(b.open)) then 'processing'
           else 'pending'
       end as status,
       case
           when n.skip_reason is not null then n.skip_reason
           when a.final and a.outcome = 'accepted' then null
           when a.final and a.reason = 'first_attempt_rejected' then a.reason
           when a.final and a.attempt = 2 and a.outcome <> 'unknown' then 'unknown_then_' || a.outcome
           when a.final then coalesce(a.reason, a.outcome)
           when b.status = 'cancelled' and b.attempt = 2 then 'unknown_then_cancelled'
           when b.status = 'expired' and b.attempt = 2 then 'unknown_then_expired'
           when b.status = 'cancelled' then 'cancelled'
           when b.status = 'expired' then 'expired'
       end as reason,
       case
           when n.skip_reason is not null then n.created_at
           when a.final then a.at
           when b.status in ('cancelled', 'expired') then b.finished_at
       end as ended_at, a.code, a.carrier_id, a.detail,
       r.resolution, r.at as resolved_at,
       n.enrollment_id, c.flow_id, c.node
from notifications n
left join lateral (
    select a.attempt, a.outcome, a.final, a.basis, a.reason, a.at, a.code, a.carrier_id, a.detail from attempts a
    where a.workspace_id = n.workspace_id and a.batch_id = n.batch_id and a.ordinal = n.ordinal
    order by a.attempt desc limit 1
) a on true
left join batches first on first.workspace_id = n.workspace_id and first.origin_id = n.origin_id and first.id = n.batch_id
left join lateral (
    select r.id, r.status, r.attempt, r.called_through, r.deferred, r.open, r.due_at, r.expires_at, r.finished_at from batches r
    where (not a.final or a.attempt is null and not n.ordinal = any(first.open))
      and r.workspace_id = n.workspace_id and r.origin_id = n.origin_id and r.root_id = n.batch_id and r.id <> r.root_id
      and r.attempt > coalesce(a.attempt, 0) and n.ordinal = any(r.open)
) part on true
cross join lateral (
    select coalesce(part.id, first.id) as id, coalesce(part.status, first.status) as status, coalesce(part.attempt, first.attempt) as attempt,
        coalesce(part.called_through, first.called_through) as called_through, coalesce(part.deferred, first.deferred) as deferred,
        coalesce(part.open, first.open) as open, first.provider_id, first.content_id,
        coalesce(part.due_at, first.due_at) as due_at, coalesce(part.expires_at, first.expires_at) as expires_at,
        case when part.id is null then first.finished_at else part.finished_at end as finished_at
) b
left join resolutions r on r.workspace_id = n.workspace_id and r.origin_id = n.origin_id and r.key = n.key
left join contents c on c.workspace_id = n.workspace_id and c.id = coalesce(b.content_id, n.content_id);

comment on constraint notifications_pkey on notifications is 'Campaign!AtMostOneNotificationPerRecipient, FlowEngine!AtMostOneNotificationPerNode';
comment on constraint enrollments_pkey on enrollments is 'FlowEngine!EachStepOnce';
comment on constraint flow_versions_pkey on flow_versions is 'FlowEngine!FlipMovesNobody';
comment on constraint outbox_pkey on outbox is 'Outbox!NoDuplicatedProcessing';
comment on constraint outbox_finished on outbox is 'Outbox!NoLostMessages';
comment on constraint enrollment_keys_once on enrollment_keys is 'FlowEngine!OneEnrollmentPerKey';
comment on index enrollments_active is 'FlowEngine!AtMostOneActiveEnrollment';
comment on constraint enrollments_due on enrollments is 'WaitResume!DueLeadsToResumed';
comment on constraint enrollment_steps_pkey on enrollment_steps is 'FlowEngine!EachStepOnce';
comment on constraint trigger_events_once on trigger_events is 'a repeated event is recorded once';

-- +goose Down
comment on constraint notifications_pkey on notifications is 'Campaign!AtMostOneNotificationPerRecipient';
drop view notification_status;
alter table contents drop column flow_id, drop column node;
alter table notifications drop column enrollment_id, drop column content_id;
create view notification_status as
select n.workspace_id, n.origin_id, n.key, n.batch_id, n.ordinal, n.profile_key, n.address, n.created_at,
       b.id as current_batch_id, b.provider_id, b.content_id, b.due_at, b.expires_at,
       case
           when a.attempt is null then 0
           when a.basis = 'gate' or a.reason in ('first_attempt_accepted', 'first_attempt_rejected') then a.attempt - 1
           else a.attempt
       end as attempts,
       case
           when n.skip_reason is not null then 'skipped'
           when a.final and a.outcome = 'accepted' then 'sent'
           when a.final and a.reason = 'first_attempt_rejected' then 'failed'
           when a.final and (a.outcome = 'unknown' or a.attempt = 2) then 'orphaned'
           when a.final and a.outcome = 'skipped' then 'skipped'
           when a.final then 'failed'
           when b.status in ('cancelled', 'expired') and b.attempt = 2 then 'orphaned'
           when b.status = 'cancelled' then 'cancelled'
           when b.status = 'expired' then 'skipped'
           when b.status = 'leased' and n.ordinal <= b.called_through
                and not n.ordinal = any(b.deferred)
                and (b.open is null or n.ordinal = any(b.open)) then 'processing'
           else 'pending'
       end as status,
       case
           when n.skip_reason is not null then n.skip_reason
           when a.final and a.outcome = 'accepted' then null
           when a.final and a.reason = 'first_attempt_rejected' then a.reason
           when a.final and a.attempt = 2 and a.outcome <> 'unknown' then 'unknown_then_' || a.outcome
           when a.final then coalesce(a.reason, a.outcome)
           when b.status = 'cancelled' and b.attempt = 2 then 'unknown_then_cancelled'
           when b.status = 'expired' and b.attempt = 2 then 'unknown_then_expired'
           when b.status = 'cancelled' then 'cancelled'
           when b.status = 'expired' then 'expired'
       end as reason,
       case
           when n.skip_reason is not null then n.created_at
           when a.final then a.at
           when b.status in ('cancelled', 'expired') then b.finished_at
       end as ended_at, a.code, a.carrier_id, a.detail,
       r.resolution, r.at as resolved_at
from notifications n
left join lateral (
    select a.attempt, a.outcome, a.final, a.basis, a.reason, a.at, a.code, a.carrier_id, a.detail from attempts a
    where a.workspace_id = n.workspace_id and a.batch_id = n.batch_id and a.ordinal = n.ordinal
    order by a.attempt desc limit 1
) a on true
left join batches first on first.workspace_id = n.workspace_id and first.origin_id = n.origin_id and first.id = n.batch_id
left join lateral (
    select r.id, r.status, r.attempt, r.called_through, r.deferred, r.open, r.due_at, r.expires_at, r.finished_at from batches r
    where (not a.final or a.attempt is null and not n.ordinal = any(first.open))
      and r.workspace_id = n.workspace_id and r.origin_id = n.origin_id and r.root_id = n.batch_id and r.id <> r.root_id
      and r.attempt > coalesce(a.attempt, 0) and n.ordinal = any(r.open)
) part on true
cross join lateral (
    select coalesce(part.id, first.id) as id, coalesce(part.status, first.status) as status, coalesce(part.attempt, first.attempt) as attempt,
        coalesce(part.called_through, first.called_through) as called_through, coalesce(part.deferred, first.deferred) as deferred,
        coalesce(part.open, first.open) as open, first.provider_id, first.content_id,
        coalesce(part.due_at, first.due_at) as due_at, coalesce(part.expires_at, first.expires_at) as expires_at,
        case when part.id is null then first.finished_at else part.finished_at end as finished_at
) b
left join resolutions r on r.workspace_id = n.workspace_id and r.origin_id = n.origin_id and r.key = n.key;

drop table outbox, flow_origins, refusals, flow_node_counts, enrollment_steps, enrollment_keys, enrollments, trigger_events, flow_polls, flow_moves, flow_shards, flow_listeners, flow_log, campaign_requests;
alter table flows drop constraint flows_live_version;
drop table flow_uses, flow_versions, flows, webhook_endpoints;

-- +goose Up
-- Two append-only ledgers (notifications, attempts) and one lease (batches).
-- Hot tables have no foreign keys: each would cost as much as the insert.
-- A comment on a constraint names the properties in specs/ that it guards.

-- The content of a batch of notifications. Written once.
create table contents (
    workspace_id     uuid not null references workspaces (id),
    id               uuid not null,
    channel          text not null check (channel in ('email', 'sms', 'push')),
    template_id      uuid,                    -- null: inline
    template_version int,
    from_name        text not null,
    from_email       text not null,
    reply_to         text not null,
    headers          jsonb not null,
    transactional    boolean not null default false, -- only bounces and complaints stop it
    topic_id         uuid,                    -- recipients that have unsubscribed from it are skipped
    created_at       timestamptz not null default now(),
    flow_id          uuid,                    -- with node: what sends it; null for a campaign
    node             text,
    subject          text,                    -- of a variant: replaces that of the template
    preheader        text,                    -- of a variant: precedes the HTML of the template, and is not shown
    conversion_event text,                    -- the event that is a conversion, within conversion_within after the message was sent
    conversion_within interval,
    inline           text,                    -- of a direct notification without a template: its content, a JSON object
    audience_id      uuid,                    -- of a direct notification: its profile is read again from there when it has waited
    primary key (workspace_id, id),
    constraint contents_conversion check ((conversion_event is null) = (conversion_within is null)),
    constraint contents_source check ((template_id is null) = (inline is not null) and (template_id is null) = (template_version is null)),
    foreign key (workspace_id, template_id, template_version) references template_versions (workspace_id, template_id, version)
);
create index contents_template on contents (workspace_id, template_id, template_version) where template_id is not null;
create index contents_converting on contents (workspace_id, conversion_event) where conversion_event is not null;

-- The intents: one row per recipient of an origin (a campaign, a month of a flow, or a
-- month of direct notifications, whose id is a UUID of version 8), written once and never
-- updated. A profile that is skipped has a row with the reason and without a batch, so
-- that the audience is the number of rows.
create table notifications (
    workspace_id  uuid not null,
    origin_id     uuid not null,
    key           uuid not null,              -- 16 bytes of SHA-256; see lemma.Key
    batch_id      uuid,
    ordinal       smallint,
    profile_key   text not null,
    address       text,
    payload       text,                       -- the columns that the template uses, a JSON object; text is cheaper than jsonb here
    skip_reason   text constraint notifications_skip_reason check (skip_reason in
        ('missing_address', 'invalid_address', 'duplicate_address', 'too_many_addresses', 'row_too_large', 'unsubscribed',
        'invalid_key', 'holdout')),
    created_at    timestamptz not null default now(),
    enrollment_id uuid,                       -- null for a campaign
    content_id    uuid,                       -- of a skipped notification of a flow, or a direct one: the content that it would have had
    converts      boolean,                    -- true: its content has a conversion; otherwise null
    metadata      text,                       -- of a direct notification: a JSON object of texts; null: empty
    constraint notifications_pkey primary key (workspace_id, origin_id, key),
    -- In a batch, or skipped: never both, never neither.
    constraint notifications_place check (
        (skip_reason is null and batch_id is not null and ordinal is not null and address is not null)
        or (skip_reason is not null and batch_id is null and ordinal is null))
) partition by range (origin_id);
create table notifications_default partition of notifications default;
comment on constraint notifications_pkey on notifications is
    'Campaign!AtMostOneNotificationPerRecipient, FlowEngine!AtMostOneNotificationPerNode';
comment on constraint notifications_place on notifications is 'Campaign!CountsBalance';
-- Finds the rows of a claimed batch. It is not unique on purpose: equal keys are
-- stored once per page, which halves the indexes of the hottest table, and
-- attempts_pkey admits one outcome per ordinal. It has all three columns, so
-- that a planner without statistics prefers it to the primary key.
create index notifications_batch on notifications (workspace_id, origin_id, batch_id) where batch_id is not null;
create index notifications_skipped on notifications (workspace_id, origin_id, key) where skip_reason is not null;
-- Finds what an event of a profile may convert.
create index notifications_converting on notifications (workspace_id, profile_key) where converts;
-- Profiles of an origin that have opted out: the fan-out skips their other rows.
create index notifications_unsubscribed on notifications (workspace_id, origin_id, profile_key) where skip_reason = 'unsubscribed';

-- What opted out after notifications were written: by a notification's key, and by
-- lemma.Key("opt-out/1", profile_key) for a profile at any address.
create table opt_outs (
    workspace_id uuid not null,
    origin_id    uuid not null,
    id           uuid not null,
    constraint opt_outs_pkey primary key (workspace_id, origin_id, id)
);

-- The only hot rows: one per some hundreds of notifications.
create table batches (
    workspace_id   uuid not null,
    origin_id      uuid not null,
    id             uuid not null,
    root_id        uuid not null,             -- the batch that its notifications name: itself, or the one that it was split from
    provider_id    uuid not null,
    content_id     uuid not null,
    size           smallint not null check (size > 0),
    attempt        smallint not null default 1,
    max_attempts   smallint not null,         -- 1: at_most_once, 2: at_least_once
    bulk           boolean not null default false, -- first attempts of direct notifications that make room for single requests
    status         text not null default 'ready'
        constraint batches_status check (status in ('ready', 'leased', 'done', 'cancelled', 'expired')),
    gate           text not null default 'open'
        constraint batches_gate check (gate in ('open', 'held', 'cancelled')), -- what pause and cancel write
    due_at         timestamptz not null default now(),
    expires_at     timestamptz,
    leased_by      text,                      -- worker/claim: fresh for every claim
    lease_until    timestamptz,
    called_through smallint not null default -1, -- rows beyond this ordinal were not called under this lease
    calling        smallint not null default 0, -- rows of open windows that have no outcome yet
    open           smallint[],                -- ordinals that have not ended; null while none has ended
    members        smallint[],                -- ordinals that a split batch or a retry batch was made with; never changed; null for a root
    deferred       smallint[] not null default '{}', -- rows of a window under this lease that were not accepted or not called
    refusals       smallint[],                -- by ordinal: how often the carrier refused the row; null while it refused none
    retry_at       timestamptz[],             -- by ordinal: when a row that the carrier refused may be called again; null as refusals is
    enqueued_at    timestamptz not null default now(), -- when its job was last enqueued
    resumed_at     timestamptz,               -- when its campaign was resumed: its rows are read from the audience again
    sent           smallint not null default 0,
    failed         smallint not null default 0,
    orphaned       smallint not null default 0,
    skipped        smallint not null default 0,
    cancelled      smallint not null default 0,
    retried        smallint not null default 0, -- unknown, and moved to a retry batch
    skips          jsonb not null default '{}', -- the reasons of skipped
    created_at     timestamptz not null default now(), -- of a root: before its recipients were read
    finished_at    timestamptz,
    constraint batches_pkey primary key (workspace_id, origin_id, id),
    constraint batches_attempt check (attempt >= 1 and attempt <= max_attempts and max_attempts <= 2),
    -- Leased exactly while it has a holder.
    constraint batches_lease check ((status = 'leased') = (leased_by is not null) and (leased_by is null) = (lease_until is null)),
    -- No row is counted twice.
    constraint batches_counts check (sent + failed + orphaned + skipped + cancelled + retried + calling <= size),
    -- A batch ends only when every row has ended.
    constraint batches_end check (status in ('ready', 'leased') or sent + failed + orphaned + skipped + cancelled + retried = size),
    -- A batch that was made from another lists its rows.
    constraint batches_root check (root_id = id and attempt = 1 and members is null
        or root_id <> id and open is not null and members is not null)
) partition by range (origin_id);
create table batches_default partition of batches default
    with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
comment on constraint batches_pkey on batches is 'SendingEngine!OnlyOwnerCommits';
comment on constraint batches_attempt on batches is 'SendingEngine!BoundedSendCount, SendingEngine!AtMostOnceStrategy';
comment on constraint batches_lease on batches is 'SendingEngine!OnlyOwnerCommits';
comment on constraint batches_counts on batches is 'Campaign!CountsBalance';
comment on constraint batches_end on batches is 'Batch!NoRowLeftBehind';
comment on constraint batches_root on batches is 'Batch!OneRowPerOrdinal';
-- Due batches that no job names. Held ones, of paused campaigns, are not in it.
create index batches_ready on batches (due_at) where status = 'ready' and gate = 'open';
create index batches_expiring on batches (workspace_id, expires_at) where status = 'ready' and expires_at is not null;
-- Workspaces that have work, and their batches in the order in which they are due. Batches of
-- direct notifications, whose origins are UUIDs of version 8, have workers of their own.
create index batches_by_due on batches (workspace_id, due_at)
    where status = 'ready' and gate = 'open' and get_byte(uuid_send(origin_id), 6) >> 4 <> 8;
create index batches_direct_by_due on batches (workspace_id, due_at)
    where status = 'ready' and gate = 'open' and get_byte(uuid_send(origin_id), 6) >> 4 = 8;
-- Batches of campaigns and flows that were never claimed, of each provider in the order in which
-- they are due: the next ones that use an idle rate.
create index batches_never_claimed on batches (workspace_id, provider_id, due_at)
    where status = 'ready' and gate = 'open' and open is null and get_byte(uuid_send(origin_id), 6) >> 4 <> 8;
-- Without lease_until, so that renewing a lease is a heap-only update.
create index batches_leased on batches (id) where status = 'leased';
-- Batches that a pause, resume or cancel changes, however many have ended. With
-- id, so that a statement about one batch reads it by all three columns.
create index batches_live on batches (workspace_id, origin_id, id) where status in ('ready', 'leased');
-- Batches that were split from another: second attempts, and rows with an
-- unknown outcome that wait for the reaper.
create index batches_derived on batches (workspace_id, origin_id, root_id) where id <> root_id;

-- Batches that a resume opens, a page at a time: those that it has opened already are not in
-- it. It has an entry only while a batch is held.
create index batches_held on batches (workspace_id, origin_id, id) where status in ('ready', 'leased') and gate = 'held';

-- Origins whose batches were held by a pause that has ended, and are being opened.
create table releases (
    workspace_id uuid not null,
    origin_id    uuid not null,
    constraint releases_pkey primary key (workspace_id, origin_id)
);

-- The outcome of each call, appended. The root batch and the ordinal identify
-- one notification permanently.
create table attempts (
    workspace_id uuid not null,
    batch_id     uuid not null,               -- the root batch
    ordinal      smallint not null,
    attempt      smallint not null,
    outcome      text not null,
    final        boolean not null,
    basis        text not null,               -- the source of the outcome
    reason       text,
    code         smallint,                    -- the carrier's reply code
    carrier_id   text,                        -- the carrier's id of the message
    detail       text,                        -- the carrier's reply, shortened
    at           timestamptz not null default now(), -- of the carrier's answer; of the commit without one
    constraint attempts_pkey primary key (workspace_id, batch_id, ordinal, attempt),
    -- A third attempt cannot be recorded.
    constraint attempts_bound check (attempt between 1 and 2),
    constraint attempts_outcome check (outcome in ('accepted', 'rejected', 'refused', 'unknown', 'skipped')),
    constraint attempts_basis check (basis in ('response', 'evidence', 'reaper', 'gate')),
    -- Only a first attempt with an unknown outcome may be followed by another.
    constraint attempts_final check (final or (outcome = 'unknown' and attempt = 1))
) partition by range (batch_id);
create table attempts_default partition of attempts default;
comment on constraint attempts_pkey on attempts is 'SendingEngine!OneOutcomePerAttempt, Batch!OneRowPerOrdinal';
comment on constraint attempts_bound on attempts is 'SendingEngine!BoundedSendCount';
comment on constraint attempts_final on attempts is 'SendingEngine!TerminalStable';
-- Finds those that were accepted before that was known.
create index attempts_settled on attempts (at) where basis = 'evidence' and outcome = 'accepted';
create index attempts_ended_badly on attempts (workspace_id, batch_id, ordinal) where outcome <> 'accepted';

-- The events of a batch, appended: its claims, its windows, and how each claim
-- ended. One row for some hundreds of notifications.
create table batch_log (
    workspace_id uuid not null,
    batch_id     uuid not null,
    at           timestamptz not null default now(),
    event        text not null constraint batch_log_event check (event in
        ('claimed', 'rendering', 'window', 'finished', 'released', 'deferred', 'unresolved', 'reaped', 'crashed', 'expired', 'cancelled',
         'lost')),
    token        text,
    first        smallint,                    -- the window's first and last ordinal
    last         smallint,
    until        timestamptz,                 -- the lease's end, or when the batch is due again
    message_date timestamptz,                 -- of a window under attempt 1: the Date of its messages, written before any call
    detail       text
) partition by range (batch_id);
create table batch_log_default partition of batch_log default;
create index batch_log_batch on batch_log (workspace_id, batch_id, at);

-- What carriers report: by webhook, and by replies that came too late to be
-- committed. Without a foreign key, because an event may name an unknown message.
-- Equal events have an equal origin, so that the unique index can be enforced in
-- each partition.
create table provider_events (
    workspace_id    uuid not null,
    origin_id       uuid not null,            -- of the notification; all zero for an event that matches none
    id              uuid not null,
    provider_id     uuid not null,
    source          text not null,            -- 'response', 'lookup' or 'webhook'
    source_event_id text not null,            -- 'unknown' without one
    batch_id        uuid,                     -- the root batch, which with ordinal identifies the notification
    ordinal         smallint,
    attempt         smallint,                 -- null: the event does not name it
    type            text constraint provider_events_type check (type in
        ('accepted', 'rejected', 'deferred', 'delayed', 'delivered', 'bounced', 'soft_bounced', 'undelivered', 'complained',
         'opened', 'clicked', 'unsubscribed')), -- null for a response
    kind            text not null constraint provider_events_kind check (kind in ('accepted', 'rejected', 'deferred')), -- what it proves
    code            smallint,
    reason          text,
    carrier_id      text,
    detail          text,
    occurred_at     timestamptz not null,
    recorded_at     timestamptz not null default now()
) partition by range (origin_id);
create table provider_events_default partition of provider_events default;
-- Those that match no notification, as many as carriers send: the default partition is locked and read whenever
-- that of a month is created.
create table provider_events_unmatched partition of provider_events
    for values from (minvalue) to ('00000000-0000-0000-0000-000000000001');
create unique index provider_events_once on provider_events (workspace_id, origin_id, provider_id, source, source_event_id)
    where source_event_id <> 'unknown';
comment on index provider_events_once is 'ProviderEvents!AppliedOnce';
create index provider_events_row on provider_events (workspace_id, batch_id, ordinal, kind, attempt, occurred_at) where batch_id is not null;
create index provider_events_without_id on provider_events (workspace_id, batch_id, ordinal, type)
    where source_event_id = 'unknown' and batch_id is not null;
create index provider_events_age on provider_events (recorded_at) where batch_id is null;

-- Events whose effects are still to be applied, written with them. A row is
-- deleted in the transaction that applies it.
create table event_queue (
    workspace_id uuid not null,
    id           uuid not null,               -- of the event; UUIDv7, so that the oldest is first
    provider_id  uuid not null,
    origin_id    uuid,                        -- null with key, batch_id and ordinal: it matches no notification
    key          uuid,
    batch_id     uuid,
    ordinal      smallint,
    type         text not null,               -- of the event; 'orphaned': the row is orphaned, and may have evidence
    attempt      smallint,
    channel      text,                        -- of address
    address      text,                        -- that the carrier reported, canonical
    detail       text,
    occurred_at  timestamptz not null,
    recorded_at  timestamptz not null default now(),
    constraint event_queue_pkey primary key (workspace_id, id)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
comment on constraint event_queue_pkey on event_queue is 'ProviderEvents!EveryEventApplied';

-- The delivery state of a notification. It only rises by rank.
create table deliveries (
    workspace_id uuid not null,
    origin_id    uuid not null,
    key          uuid not null,
    state        text not null,
    rank         smallint not null,
    at           timestamptz not null,        -- when the first event of this state occurred
    constraint deliveries_pkey primary key (workspace_id, origin_id, key),
    constraint deliveries_rank check (rank > 0 and rank = coalesce(array_position(
        array['delayed', 'rejected', 'undelivered', 'delivered', 'bounced', 'complained'], state), 0))
) partition by range (origin_id);
create table deliveries_default partition of deliveries default with (fillfactor = 80);
comment on constraint deliveries_pkey on deliveries is 'ProviderEvents!RankOnlyRises';
comment on constraint deliveries_rank on deliveries is 'ProviderEvents!RankOnlyRises';
-- The few that were not delivered, for lists of them.
create index deliveries_failed on deliveries (workspace_id, origin_id, state, key) where rank <> 4;

-- How many notifications of an origin have each delivery state, by content: a node of
-- a flow, or the campaign.
create table delivery_counts (
    workspace_id uuid not null,
    origin_id    uuid not null,
    content_id   uuid not null,
    state        text not null,
    count        bigint not null constraint delivery_counts_positive check (count >= 0),
    constraint delivery_counts_pkey primary key (workspace_id, origin_id, content_id, state)
) with (fillfactor = 50);

-- The newest event of each provider. The reaper allows no second attempt of a call that
-- is later than this, or whose event may still come if all are as late as this one.
create table provider_watermarks (
    workspace_id uuid not null,
    provider_id  uuid not null,
    occurred_at  timestamptz not null,        -- by the carrier's clock, and not after it was recorded
    recorded_at  timestamptz not null,        -- when that event was recorded
    constraint provider_watermarks_pkey primary key (workspace_id, provider_id),
    foreign key (workspace_id, provider_id) references providers (workspace_id, id) on delete cascade
) with (fillfactor = 50);
comment on constraint provider_watermarks_pkey on provider_watermarks is 'SendingEngine!SingleSendUnderAssumptions';

-- What a person or late evidence found out about an orphaned notification. The first resolution
-- is final; the notification stays orphaned and is never sent again.
create table resolutions (
    workspace_id uuid not null,
    origin_id    uuid not null,
    key          uuid not null,
    resolution   text not null check (resolution in ('sent', 'not_sent')),
    note         text not null default '',
    api_key_id   uuid,                        -- null: late evidence
    at           timestamptz not null default now(),
    primary key (workspace_id, origin_id, key)
);
create index resolutions_sent on resolutions (at) where resolution = 'sent' and api_key_id is null;

-- The origins of a flow's notifications: one per month in which profiles
-- enrolled, so that all messages of an enrollment are in the partitions of the
-- month in which it began.
create table flow_origins (
    workspace_id uuid not null,
    origin_id    uuid not null,
    flow_id      uuid not null,
    primary key (workspace_id, origin_id)
);
create index flow_origins_flow on flow_origins (workspace_id, flow_id);

-- The status of a notification is derived here and nowhere else: worker,
-- reaper and API read the view below.
--   skipped    it has a skip_reason, or a gate ended it before any call
--   sent       the last attempt was accepted
--   failed     it was not accepted, and no attempt before it is unknown (an
--              unknown first attempt may be found rejected before the second)
--   orphaned   the outcome is unknown, and no attempt is left
--   cancelled  its batch was cancelled before it was called
--   processing it is in an open window
--   pending    none of these
-- attempts counts the attempts that were called or may have been called. It
-- leaves out an attempt that a gate ended, and a second attempt that evidence
-- about the first made unnecessary. reason is null for a notification that was
-- sent or has not ended, ended_at for one that has not ended.
-- With offset 0 each table is read by the key of the row. Without statistics a join
-- would read all batches of the origin, and all contents of the workspace.
-- It is a function, so that exports, which read whole batches, have the same words. A
-- query that has it in `cross join lateral` contains its expressions: it is not called.
-- +goose StatementBegin
create function notification_outcome(
    skip_reason text, created_at timestamptz, ordinal smallint,
    attempt smallint, outcome text, final boolean, basis text, cause text, at timestamptz,
    batch_status text, batch_attempt smallint, called_through smallint, deferred smallint[], open smallint[], finished_at timestamptz)
returns table (attempts integer, status text, reason text, ended_at timestamptz) language sql immutable as $$
    select
        case
            when attempt is null then 0
            when basis = 'gate' or cause in ('first_attempt_accepted', 'first_attempt_rejected') then attempt - 1
            else attempt
        end as attempts,
        case
            when skip_reason is not null then 'skipped'
            when final and outcome = 'accepted' then 'sent'
            when final and cause = 'first_attempt_rejected' then 'failed'
            when final and (outcome = 'unknown' or attempt = 2) then 'orphaned'
            when final and outcome = 'skipped' and cause = 'cancelled' then 'cancelled'
            when final and outcome = 'skipped' then 'skipped'
            when final then 'failed'
            when batch_status in ('cancelled', 'expired') and batch_attempt = 2 then 'orphaned'
            when batch_status = 'cancelled' then 'cancelled'
            when batch_status = 'expired' then 'skipped'
            when batch_status = 'leased' and ordinal <= called_through
                 and not ordinal = any(deferred)
                 and (open is null or ordinal = any(open)) then 'processing'
            else 'pending'
        end as status,
        case
            when skip_reason is not null then skip_reason
            when final and outcome = 'accepted' then null
            when final and cause = 'first_attempt_rejected' then cause
            when final and attempt = 2 and outcome <> 'unknown' then 'unknown_then_' || outcome
            when final then coalesce(cause, outcome)
            when batch_status = 'cancelled' and batch_attempt = 2 then 'unknown_then_cancelled'
            when batch_status = 'expired' and batch_attempt = 2 then 'unknown_then_expired'
            when batch_status = 'cancelled' then 'cancelled'
            when batch_status = 'expired' then 'expired'
        end as reason,
        case
            when skip_reason is not null then created_at
            when final then at
            when batch_status in ('cancelled', 'expired') then finished_at
        end as ended_at
$$;
-- +goose StatementEnd

create view notification_status as
select n.workspace_id, n.origin_id, n.key, n.batch_id, n.ordinal, n.profile_key, n.address, n.created_at,
       b.id as current_batch_id, b.provider_id, b.content_id,
       greatest(b.due_at, b.retry_at[n.ordinal + 1]) as due_at, b.expires_at,
       o.attempts, o.status, o.reason, o.ended_at, a.code, a.carrier_id, a.detail,
       r.resolution, r.at as resolved_at,
       n.enrollment_id, c.flow_id, c.node, c.channel, n.metadata, a.outcome
from notifications n
left join lateral (
    select a.attempt, a.outcome, a.final, a.basis, a.reason, a.at, a.code, a.carrier_id, a.detail from attempts a
    where a.workspace_id = n.workspace_id and a.batch_id = n.batch_id and a.ordinal = n.ordinal
    order by a.attempt desc limit 1
) a on true
left join lateral (
    select f.id, f.status, f.attempt, f.called_through, f.deferred, f.open, f.provider_id, f.content_id, f.due_at, f.retry_at,
        f.expires_at, f.finished_at
    from batches f where f.workspace_id = n.workspace_id and f.origin_id = n.origin_id and f.id = n.batch_id
    offset 0
) first on true
left join lateral (
    select r.id, r.status, r.attempt, r.called_through, r.deferred, r.open, r.due_at, r.retry_at, r.expires_at, r.finished_at
    from batches r
    where (not a.final or a.attempt is null and not n.ordinal = any(first.open))
      and r.workspace_id = n.workspace_id and r.origin_id = n.origin_id and r.root_id = n.batch_id and r.id <> r.root_id
      and r.attempt > coalesce(a.attempt, 0) and n.ordinal = any(r.open)
    offset 0
) part on true
cross join lateral (
    select coalesce(part.id, first.id) as id, coalesce(part.status, first.status) as status,
        coalesce(part.attempt, first.attempt) as attempt,
        coalesce(part.called_through, first.called_through) as called_through, coalesce(part.deferred, first.deferred) as deferred,
        coalesce(part.open, first.open) as open, first.provider_id, first.content_id,
        coalesce(part.due_at, first.due_at) as due_at,
        case when part.id is null then first.retry_at else part.retry_at end as retry_at,
        coalesce(part.expires_at, first.expires_at) as expires_at,
        case when part.id is null then first.finished_at else part.finished_at end as finished_at
) b
cross join lateral notification_outcome(n.skip_reason, n.created_at, n.ordinal, a.attempt, a.outcome, a.final, a.basis, a.reason, a.at,
    b.status, b.attempt, b.called_through, b.deferred, b.open, b.finished_at) o
left join resolutions r on r.workspace_id = n.workspace_id and r.origin_id = n.origin_id and r.key = n.key
left join lateral ( -- a campaign's content has its id
    select k.flow_id, k.node, k.channel from contents k
    where k.workspace_id = n.workspace_id and k.id = coalesce(b.content_id, n.content_id, n.origin_id)
    offset 0
) c on true;

-- +goose Down
drop view notification_status;
drop function notification_outcome;
drop table flow_origins;
drop table resolutions;
drop table provider_watermarks;
drop table delivery_counts;
drop table deliveries;
drop table event_queue;
drop table provider_events;
drop table batch_log;
drop table attempts;
drop table releases;
drop table batches;
drop table opt_outs;
drop table notifications;
drop table contents;

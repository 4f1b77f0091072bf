-- +goose Up

create table webhook_endpoints (
    workspace_id uuid not null references workspaces (id),
    id           uuid not null,
    name         text not null check (length(name) between 1 and 200),
    url          text not null check (length(url) between 1 and 2000),
    secret       bytea not null,              -- sealed with the rotated secrets that still sign; workspace and id are its additional data
    subscriptions jsonb not null default '[]', -- as the API shows them; webhook_subscriptions has their types
    sequence     bigint not null default 0,   -- of its last event message
    status       text not null default 'enabled' constraint webhook_endpoints_status check (status in ('enabled', 'disabled')),
    status_reason text,
    enabled_at   timestamptz not null default now(), -- when it was last enabled: earlier failures do not count
    disabled_at  timestamptz,
    failing_since timestamptz,                -- the first failed call of an event message since the last delivery
    version      int not null default 1,
    created_at   timestamptz not null default now(),
    updated_at   timestamptz not null default now(),
    primary key (workspace_id, id),
    constraint webhook_endpoints_name unique (workspace_id, name),
    constraint webhook_endpoints_disabled check ((status = 'disabled') = (disabled_at is not null and status_reason is not null))
) with (fillfactor = 70);
create index webhook_endpoints_failing on webhook_endpoints (failing_since) where failing_since is not null and status = 'enabled';

-- Which endpoint receives which type of event, or some of that type: webhook_endpoints has its subscriptions.
-- A statement that changes a state reads it to decide whether it writes the event. The list of types is
-- here, and not in events_out, since Postgres parses a check in each statement that writes.
create table webhook_subscriptions (
    workspace_id uuid not null,
    type         text not null constraint webhook_subscriptions_type check (type in (
        'notification.sent', 'notification.delivered', 'notification.bounced', 'notification.complained', 'notification.failed',
        'notification.skipped', 'notification.orphaned', 'notification.opened', 'notification.clicked', 'notification.unsubscribed',
        'campaign.started', 'campaign.paused', 'campaign.completed', 'campaign.failed', 'iteration.decided', 'iteration.inconclusive',
        'enrollment.started', 'enrollment.completed', 'enrollment.exited', 'provider.failing',
        'suppression.added')),
    endpoint_id  uuid not null,
    constraint webhook_subscriptions_pkey primary key (workspace_id, type, endpoint_id),
    foreign key (workspace_id, endpoint_id) references webhook_endpoints (workspace_id, id) on delete cascade
);
create index webhook_subscriptions_endpoint on webhook_subscriptions (workspace_id, endpoint_id);

-- Events for the subscribed endpoints, written by the statement or transaction that
-- changes the state: at most one per type and batch or statement. The publisher writes a
-- message to each endpoint. The items are notifications, by batch and ordinal or by key,
-- enrollments or suppressions. Keys are binary, since an array costs a function call for each. They
-- stay when the event is published: its messages have them as ids, which are four times as
-- long, and an id of a key has one form.
create table events_out (
    workspace_id uuid not null,
    id           uuid not null,
    type         text not null,               -- one to which an endpoint subscribes
    origin_id    uuid not null,               -- of the notifications; else the campaign, flow, provider or workspace
    batch_id     uuid,                        -- root batch of the notifications; null: keys has the items, or there are none
    ordinals     smallint[],                  -- null: every row of the batch
    keys         bytea,                       -- 16 bytes for each item; published: of all items
    details      text[],                      -- why, for each item
    data         jsonb not null default '{}',
    count        int not null,                -- items
    occurred_at  timestamptz not null default now(),
    published_at timestamptz,
    aside_until  timestamptz,                 -- it could not be published, and is not tried again before
    body         text,                        -- published: the data of its messages up to their items
    constraint events_out_pkey primary key (workspace_id, id),
    constraint events_out_body check (published_at is null or body is not null)
) with (autovacuum_vacuum_scale_factor = 0.02, fillfactor = 70);
alter table events_out alter column keys set storage external;
comment on constraint events_out_pkey on events_out is 'Outbox!NoDuplicatedProcessing';
create index events_out_pending on events_out (workspace_id, occurred_at, id) where published_at is null;
create index events_out_over on events_out (published_at) where published_at is not null;

-- Messages to customers' systems: written in the transaction that changes the
-- state and sent after it, with the same body and id in every attempt.
create table outbox (
    workspace_id  uuid not null,
    id            uuid not null,              -- webhook-id
    endpoint_id   uuid not null,
    body          text not null,              -- with body_of: what precedes the data
    body_of       uuid,                       -- the event with whose data and items the body goes on
    enrollment_id uuid,                       -- the enrollment that waits for the answer, and at which step
    step          int,
    event_id      uuid,                       -- the event that it carries; null: a flow node's message, or a test
    type          text,                       -- of the event, or 'test'
    sequence      bigint,                     -- of an event message among those of its endpoint, without gaps
    resent_at     timestamptz,                -- when it was last sent again by request; GiveUp counts from then
    status        text not null default 'pending' constraint outbox_status check (status in ('pending', 'delivered', 'failed')),
    attempts      int not null default 0,
    status_code   int,                        -- of the last answer
    last_error    text,
    called_at     timestamptz,                -- when the last call ended
    answered      boolean not null default false, -- pending: the last answer is final, and its consequences are not written yet
    due_at        timestamptz not null default now(), -- leased: when the lease expires
    waits         boolean not null default false, -- pending: for a further call at due_at; then a claim ends the wait
    leased_by     text,
    lease_until   timestamptz,
    created_at    timestamptz not null default now(),
    finished_at   timestamptz,
    constraint outbox_pkey primary key (workspace_id, id),
    constraint outbox_lease check ((leased_by is null) = (lease_until is null) and (status = 'pending' or leased_by is null)),
    constraint outbox_finished check ((status = 'pending') = (finished_at is null)),
    constraint outbox_event check ((event_id is null) = (sequence is null) and (event_id is null or type is not null)),
    constraint outbox_body_of check (body_of is null or event_id is not null and body_of = event_id),
    constraint outbox_of_event foreign key (workspace_id, body_of) references events_out (workspace_id, id)
) with (autovacuum_vacuum_scale_factor = 0.02);
alter table outbox alter column body set storage external;
comment on constraint events_out_body on events_out is 'Outbox!ConsistentOutput';
comment on constraint outbox_of_event on outbox is 'Outbox!ConsistentOutput';
comment on constraint outbox_pkey on outbox is 'Outbox!NoDuplicatedProcessing';
comment on constraint outbox_finished on outbox is 'Outbox!NoLostMessages';
-- Endpoints with messages that can be called now, or are being called, are found by
-- skipping from one to the next, so that neither the messages of a failing endpoint nor
-- endpoints whose messages all wait are read to find the others.
create index outbox_ready on outbox (workspace_id, endpoint_id, due_at) where status = 'pending' and not waits;
create index outbox_waiting on outbox (workspace_id, endpoint_id, due_at) where status = 'pending' and waits;
create index outbox_woken on outbox (due_at) where status = 'pending' and waits;
create index outbox_over on outbox (finished_at) where status <> 'pending';
-- Finished messages of an endpoint, newest first. Without the workspace, so that
-- a planner without statistics does not use it to find messages by id.
create index outbox_ended on outbox (endpoint_id, status, finished_at, id) where status <> 'pending';
-- One message per event and endpoint, and each number of an endpoint once.
create unique index outbox_sequence on outbox (workspace_id, endpoint_id, sequence) where sequence is not null;
comment on index outbox_sequence is 'Outbox!NoDuplicatedProcessing';
-- Messages with the body of an event, which is kept for them.
create index outbox_by_event on outbox (workspace_id, body_of) where body_of is not null;
create index outbox_enrollment on outbox (workspace_id, enrollment_id) where enrollment_id is not null;

-- +goose Down
drop table outbox;
drop table events_out;
drop table webhook_subscriptions;
drop table webhook_endpoints;

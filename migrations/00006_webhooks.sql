-- +goose Up

create table webhook_endpoints (
    workspace_id uuid not null references workspaces (id),
    id           uuid not null,
    name         text not null check (length(name) between 1 and 200),
    url          text not null check (length(url) between 1 and 2000),
    secret       bytea not null,              -- sealed with the rotated secrets that still sign; workspace and id are its additional data
    version      int not null default 1,
    created_at   timestamptz not null default now(),
    updated_at   timestamptz not null default now(),
    primary key (workspace_id, id),
    constraint webhook_endpoints_name unique (workspace_id, name)
);

-- Messages to customers' systems: written in the transaction that changes the
-- state and sent after it, with the same body and id in every attempt.
create table outbox (
    workspace_id  uuid not null,
    id            uuid not null,              -- webhook-id
    endpoint_id   uuid not null,
    body          text not null,
    enrollment_id uuid,                       -- the enrollment that waits for the answer, and at which step
    step          int,
    status        text not null default 'pending' constraint outbox_status check (status in ('pending', 'delivered', 'failed')),
    attempts      int not null default 0,
    status_code   int,                        -- of the last answer
    last_error    text,
    called_at     timestamptz,                -- when the last call ended
    answered      boolean not null default false, -- pending: the last answer is final, and its consequences are not written yet
    due_at        timestamptz not null default now(), -- leased: when the lease expires
    leased_by     text,
    lease_until   timestamptz,
    created_at    timestamptz not null default now(),
    finished_at   timestamptz,
    constraint outbox_pkey primary key (workspace_id, id),
    constraint outbox_lease check ((leased_by is null) = (lease_until is null) and (status = 'pending' or leased_by is null)),
    constraint outbox_finished check ((status = 'pending') = (finished_at is null))
) with (autovacuum_vacuum_scale_factor = 0.02);
comment on constraint outbox_pkey on outbox is 'Outbox!NoDuplicatedProcessing';
comment on constraint outbox_finished on outbox is 'Outbox!NoLostMessages';
-- Endpoints with pending messages are found by skipping from one to the next,
-- so that the messages of a failing endpoint are not read to find the others.
create index outbox_due on outbox (workspace_id, endpoint_id, due_at) where status = 'pending';
create index outbox_over on outbox (finished_at) where status <> 'pending';
-- Finished messages of an endpoint, newest first. Without the workspace, so that
-- a planner without statistics does not use it to find messages by id.
create index outbox_ended on outbox (endpoint_id, status, finished_at, id) where status <> 'pending';
create index outbox_enrollment on outbox (workspace_id, enrollment_id) where enrollment_id is not null;

-- +goose Down
drop table outbox;
drop table webhook_endpoints;

-- +goose Up
-- Workspaces and who may speak for them. Both tables are small and read-mostly:
-- past one Postgres they are reference tables, which is why they alone may have
-- unique keys without a workspace_id.

create table workspaces (
    id         uuid primary key,
    name       text not null check (length(name) between 1 and 200),
    created_at timestamptz not null default now(),
    constraint workspaces_name unique (name)
);

create table api_keys (
    workspace_id uuid not null references workspaces (id),
    id           uuid not null,
    name         text not null check (length(name) between 1 and 200),
    prefix       text not null,               -- the first characters, to recognise a key by
    hash         bytea not null,              -- SHA-256 of the whole key; the key itself is shown once and never stored
    attempt      int not null default 1,      -- of the request that made it and drew the token: an earlier one that comes late draws no other
    scopes       text[] not null,
    created_at   timestamptz not null default now(),
    last_used_at timestamptz,                 -- to the minute: a key in use is not a hot row
    revoked_at   timestamptz,
    primary key (workspace_id, id),
    constraint api_keys_hash unique (hash)
);

-- One row for every POST that named a key. The insert is the lock: who inserts
-- may act, everybody else waits or reads the stored answer.
create table idempotency_keys (
    workspace_id  uuid not null references workspaces (id),
    key           text not null check (length(key) between 1 and 255),
    request_hash  bytea not null,             -- method, path and body: another body under the same key is refused
    locked_by     uuid not null,              -- the claim: each write of the request that holds the key names it
    claims        int not null default 1,     -- how many requests have held the key: a later claim has a higher number
    locked_until  timestamptz not null,       -- renewed while the request runs; after this another request may take the key over
    status        int,                        -- null while the request is on its way
    headers       jsonb,
    body          bytea,
    created_at    timestamptz not null default now(),
    primary key (workspace_id, key)
);
create index idempotency_keys_age on idempotency_keys (created_at);

-- +goose Down
drop table idempotency_keys, api_keys, workspaces;

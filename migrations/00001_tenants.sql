-- +goose Up
-- Workspaces and their API keys. Both tables are small and read-mostly. Beyond
-- one Postgres they are reference tables, so they alone may have unique keys
-- without a workspace_id.

create table workspaces (
    id         uuid primary key,
    name       text not null check (length(name) between 1 and 200),
    page       jsonb not null default '{}',   -- how the preference page of its recipients looks
    tracking_url text not null default '',    -- where links of its messages lead; empty: the public URL of the server
    lock_for   interval not null default '2 minutes', -- of the keys of direct notifications: how long a request may lock one
    seal_for   interval not null default '6 hours',   -- and how long one stays sealed after its notification has ended
    strategy   text not null default 'at_most_once' check (strategy in ('at_most_once', 'at_least_once')), -- of direct notifications
    version    int not null default 1,
    created_at timestamptz not null default now(),
    constraint workspaces_key_times check (lock_for >= '1 second' and lock_for <= '1 hour' and seal_for >= '1 second' and seal_for <= '72 hours'),
    constraint workspaces_name unique (name)
);

create table api_keys (
    workspace_id uuid not null references workspaces (id),
    id           uuid not null,
    name         text not null check (length(name) between 1 and 200),
    prefix       text not null,               -- the first characters, by which a key is recognised
    hash         bytea not null,              -- SHA-256 of the whole key; the key itself is shown once and never stored
    attempt      int not null default 1,      -- of the request that stored the hash; an earlier attempt cannot replace it
    scopes       text[] not null,
    created_at   timestamptz not null default now(),
    last_used_at timestamptz,                 -- to the minute, so that a key in use is not a hot row
    revoked_at   timestamptz,
    primary key (workspace_id, id),
    constraint api_keys_hash unique (hash)
);

-- One row for every POST with an Idempotency-Key. The insert is the lock: the
-- request that inserts the row acts, any other waits or reads the stored answer.
create table idempotency_keys (
    workspace_id  uuid not null references workspaces (id),
    key           text not null check (length(key) between 1 and 255),
    request_hash  bytea not null,             -- method, path and body; another request with the same key is refused
    locked_by     uuid not null,              -- the claim; every write of the request that holds the key names it
    claims        int not null default 1,     -- how many requests have held the key; a later claim has a higher number
    locked_until  timestamptz not null,       -- renewed while the request runs; afterwards another request may claim the key
    called_at     timestamptz,                -- when a request under the key made a call that must not be repeated
    status        int,                        -- null while the request runs
    headers       jsonb,
    body          bytea,
    excess        bigint,                     -- bytes of the answer beyond a multiple of the request; null for most
    created_at    timestamptz not null default now(),
    primary key (workspace_id, key)
);
create index idempotency_keys_excess on idempotency_keys (workspace_id) include (excess) where excess is not null;
create index idempotency_keys_age on idempotency_keys (created_at);

-- The settings that concern all processes, with the values that processes have or had. They
-- are those of the installation, so the rows have no workspace.
create table settings (
    name       text not null,                          -- such as LEMMA_PUBLIC_URL
    value      text not null,                          -- of LEMMA_SECRET_KEY fingerprints
    started_at timestamptz not null,                   -- when the last process with it started
    seen_at    timestamptz not null default now(),     -- when a process with it ran last, to a few seconds
    constraint settings_pkey primary key (name, value),
    constraint settings_name check (name ~ '^LEMMA_[A-Z0-9_]+$'),
    constraint settings_public_url check (name <> 'LEMMA_PUBLIC_URL' or value ~ '^https?://')
);
comment on constraint settings_pkey on settings is 'a value of a setting has one row';

-- Hosts of tracking URLs. A host belongs to the workspace that had it first, also when its tracking URL
-- is another one: its links lead there, and no other workspace makes links or pages under that name. That
-- of a public URL is of all workspaces for ever, also if one had it before.
create table tracking_hosts (
    host         text not null,               -- in lower case, without a port
    workspace_id uuid references workspaces (id), -- null: of all
    created_at   timestamptz not null default now(),
    constraint tracking_hosts_pkey primary key (host)
);
comment on constraint tracking_hosts_pkey on tracking_hosts is 'a host of links belongs to one workspace';
create index tracking_hosts_of on tracking_hosts (workspace_id);

-- +goose Down
drop table tracking_hosts;
drop table settings;
drop table idempotency_keys;
drop table api_keys;
drop table workspaces;

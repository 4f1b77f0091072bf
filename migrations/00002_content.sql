-- +goose Up
-- What a campaign is made of: where people come from, what they are told, who carries it.

create table data_sources (
    workspace_id uuid not null references workspaces (id),
    id           uuid not null,
    name         text not null check (length(name) between 1 and 200),
    kind         text not null check (kind in ('postgres', 'mysql')),
    address      text not null,               -- host, port and database for people to read; never a secret
    tls          text not null default 'prefer' check (tls in ('unix', 'disable', 'prefer', 'require', 'verify-full')), -- how the DSN protects the connection
    dsn          bytea not null,              -- sealed; the row's workspace and id are its additional data
    status       text not null default 'untested' check (status in ('untested', 'ok', 'failed')),
    tested_at    timestamptz,
    test_error   text,
    role_warnings text[] not null default '{}', -- what the last test found of the role and did not refuse
    role_revokes text[] not null default '{}',  -- statements that take from the role what it does not need
    version      int not null default 1,      -- what ETag shows and If-Match compares
    created_at   timestamptz not null default now(),
    updated_at   timestamptz not null default now(),
    primary key (workspace_id, id),
    constraint data_sources_name unique (workspace_id, name)
);

create table audiences (
    workspace_id     uuid not null,
    id               uuid not null,
    data_source_id   uuid not null,
    name             text not null check (length(name) between 1 and 200),
    sql              text not null,
    key_column       text not null,           -- the column that is the profile key
    email_column     text not null,           -- the column that is the address
    opted_out_column text,                    -- true in it: skipped as unsubscribed
    columns          jsonb not null,          -- [{name, type}] as the source described them when the audience was saved
    version          int not null default 1,
    created_at       timestamptz not null default now(),
    updated_at       timestamptz not null default now(),
    primary key (workspace_id, id),
    constraint audiences_name unique (workspace_id, name),
    foreign key (workspace_id, data_source_id) references data_sources (workspace_id, id)
);

create table templates (
    workspace_id uuid not null references workspaces (id),
    id           uuid not null,
    name         text not null check (length(name) between 1 and 200),
    channel      text not null check (channel in ('email')),
    version      int not null default 1,      -- the newest version
    created_at   timestamptz not null default now(),
    updated_at   timestamptz not null default now(),
    primary key (workspace_id, id),
    constraint templates_name unique (workspace_id, name)
);

-- Written once: what a notification was made from stays what it was.
create table template_versions (
    workspace_id uuid not null,
    template_id  uuid not null,
    version      int not null check (version >= 1),
    subject      text not null,
    html         text not null,
    text         text not null,
    variables    text[] not null,             -- the top-level names that the three texts use
    request      uuid,                        -- that made it; of the first, the template's id
    created_at   timestamptz not null default now(),
    primary key (workspace_id, template_id, version),
    constraint template_versions_request unique (workspace_id, template_id, request), -- a repeated request makes one
    foreign key (workspace_id, template_id) references templates (workspace_id, id) on delete cascade
);

create table providers (
    workspace_id    uuid not null references workspaces (id),
    id              uuid not null,
    name            text not null check (length(name) between 1 and 200),
    channel         text not null check (channel in ('email')),
    kind            text not null,            -- which carrier; the sender refuses kinds that it has none for
    config          jsonb not null,           -- what is not secret
    secrets         bytea,                    -- sealed JSON; the row's workspace and id are its additional data
    rate_per_second double precision check (rate_per_second > 0), -- null: as fast as the carrier takes them
    version         int not null default 1,
    created_at      timestamptz not null default now(),
    updated_at      timestamptz not null default now(),
    primary key (workspace_id, id),
    constraint providers_name unique (workspace_id, name)
);

-- The hot side of a provider, apart from it so that drawing from the rate
-- touches a narrow row. All nodes share it.
create table provider_meters (
    workspace_id uuid not null,
    provider_id  uuid not null,
    next_free_at timestamptz not null default '-infinity', -- when the rate has been paid off (generic cell rate algorithm)
    failures     int not null default 0,                   -- calls in a row that no acceptance followed
    refusals     int not null default 0,                   -- of these, single messages that were refused for now or whose outcome is unknown
    rejections   int not null default 0,                   -- of these, single messages that were rejected, since the last pause for them
    first_error  text,                                     -- the cause: the first of the failures, or what opened the circuit
    failing_since timestamptz,                             -- when that was
    last_error   text,                                     -- the last failure; kept when the provider has recovered
    failed_at    timestamptz,
    opened_at    timestamptz,                              -- the circuit is open since then: only probes call
    open_until   timestamptz,                              -- no probe before
    probes       smallint not null default 0,              -- probes that failed; they set the back-off
    probe_token  text,                                     -- the claim that probes
    probe_until  timestamptz,                              -- the lease of the probe: after that another claim may
    throttled_at   timestamptz,                              -- when a batch last found no place to be sent at
    throttled_by   text,                                     -- because of which limit
    primary key (workspace_id, provider_id),
    constraint provider_meters_circuit check ((opened_at is null) = (open_until is null) and (opened_at is not null or probe_token is null)
        and (probe_token is null) = (probe_until is null)),
    foreign key (workspace_id, provider_id) references providers (workspace_id, id) on delete cascade
) with (fillfactor = 50);

-- +goose Down
drop table provider_meters, providers, template_versions, templates, audiences, data_sources;

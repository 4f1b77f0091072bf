-- +goose Up

create table providers (
    workspace_id    uuid not null references workspaces (id),
    id              uuid not null,
    name            text not null check (length(name) between 1 and 200),
    channel         text not null check (channel in ('email', 'sms', 'push')),
    kind            text not null,            -- the carrier; the sender rejects kinds that it does not know
    config          jsonb not null,           -- what is not secret
    secrets         bytea,                    -- sealed JSON; the row's workspace and id are its additional data
    rate_per_second double precision check (rate_per_second > 0), -- null: unlimited
    receives        boolean not null default false, -- it is configured to receive the carrier's webhooks
    version         int not null default 1,
    created_at      timestamptz not null default now(),
    updated_at      timestamptz not null default now(),
    primary key (workspace_id, id),
    constraint providers_name unique (workspace_id, name)
);
-- The webhook URL of a provider names no workspace.
create index providers_id on providers (id);

-- The rate and the circuit of a provider, shared by all processes. They are
-- apart from providers, so that the hot updates touch a narrow row.
create table provider_meters (
    workspace_id  uuid not null,
    provider_id   uuid not null,
    next_free_at  timestamptz not null default '-infinity', -- when the rate allows the next message (generic cell rate algorithm)
    failures      int not null default 0,     -- failed calls since the last acceptance
    refusals      int not null default 0,     -- of these, messages that were refused for now or whose outcome is unknown
    rejections    int not null default 0,     -- of these, messages that were rejected, since the last pause for rejections
    hangs         int not null default 0,     -- recipients in a row for which the server did not reply, each counted once
    first_error   text,                       -- the cause: the first of the failures, or what opened the circuit
    failing_since timestamptz,                -- time of first_error
    last_error    text,                       -- the last failure; kept after the provider has recovered
    failed_at     timestamptz,                -- time of last_error
    asked_until   timestamptz,                -- until when the provider asked to wait with its last failure (Retry-After)
    opened_at     timestamptz,                -- when the circuit opened; while it is open only probes call
    open_until    timestamptz,                -- no probe before this time
    probes        smallint not null default 0, -- failed probes; they set the back-off
    probe_token   text,                       -- the claim that probes
    probe_until   timestamptz,                -- the lease of the probe: afterwards another claim may probe
    throttled_at  timestamptz,                -- when a limit last delayed a batch
    throttled_by  text,                       -- the name of that limit
    primary key (workspace_id, provider_id),
    constraint provider_meters_circuit check ((opened_at is null) = (open_until is null)
        and (opened_at is not null or probe_token is null)
        and (probe_token is null) = (probe_until is null)),
    foreign key (workspace_id, provider_id) references providers (workspace_id, id) on delete cascade
) with (fillfactor = 50);

-- When a workspace may send the next test message over a provider (generic cell rate
-- algorithm).
create table provider_test_meters (
    workspace_id uuid primary key references workspaces (id),
    next_free_at timestamptz not null
);

-- +goose Down
drop table provider_test_meters;
drop table provider_meters;
drop table providers;

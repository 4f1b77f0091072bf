-- +goose Up
-- Audiences, templates and topics: where profiles come from, what messages contain,
-- and which kinds of messages there are.

create table data_sources (
    workspace_id  uuid not null references workspaces (id),
    id            uuid not null,
    name          text not null check (length(name) between 1 and 200),
    kind          text not null check (kind in ('postgres', 'mysql')),
    address       text not null,              -- host, port and database, for people to read; never a secret
    tls           text not null default 'prefer' -- how the DSN protects the connection
        check (tls in ('unix', 'disable', 'prefer', 'require', 'verify-full')),
    dsn           bytea not null,             -- sealed; the row's workspace and id are its additional data
    status        text not null default 'untested' check (status in ('untested', 'ok', 'failed')),
    tested_at     timestamptz,
    test_error    text,
    role_warnings text[] not null default '{}', -- what the last test found about the role and accepted
    role_revokes  text[] not null default '{}', -- statements that revoke what the role does not need
    version       int not null default 1,     -- the ETag, which If-Match compares
    created_at    timestamptz not null default now(),
    updated_at    timestamptz not null default now(),
    primary key (workspace_id, id),
    constraint data_sources_name unique (workspace_id, name)
);

create table audiences (
    workspace_id     uuid not null,
    id               uuid not null,
    data_source_id   uuid not null,
    name             text not null check (length(name) between 1 and 200),
    sql              text not null,
    key_column       text not null,           -- the column with the profile key
    email_column     text,                    -- the columns with the addresses of each channel; null: it has none
    phone_column     text,
    phone_region     text,                    -- the country of phone numbers in national form (ISO 3166-1 alpha-2)
    push_column      text,                    -- tokens of devices: a text or a list
    opted_out_column text,                    -- true in it: the profile is skipped as unsubscribed
    columns          jsonb not null,          -- [{name, type}] as the source described them when the audience was saved
    version          int not null default 1,
    created_at       timestamptz not null default now(),
    updated_at       timestamptz not null default now(),
    primary key (workspace_id, id),
    constraint audiences_name unique (workspace_id, name),
    constraint audiences_address check (num_nonnulls(email_column, phone_column, push_column) > 0),
    foreign key (workspace_id, data_source_id) references data_sources (workspace_id, id)
);
create index audiences_data_source on audiences (workspace_id, data_source_id) where data_source_id is not null; -- for its deletion alone

create table templates (
    workspace_id uuid not null references workspaces (id),
    id           uuid not null,
    name         text not null check (length(name) between 1 and 200),
    channel      text not null check (channel in ('email', 'sms', 'push')),
    version      int not null default 1,      -- the newest version
    revision     int not null default 1,      -- ETag: it changes with each version and each name
    created_at   timestamptz not null default now(),
    updated_at   timestamptz not null default now(),
    primary key (workspace_id, id),
    constraint templates_name unique (workspace_id, name)
);

-- Written once, so that the content of a notification never changes.
create table template_versions (
    workspace_id uuid not null,
    template_id  uuid not null,
    version      int not null check (version >= 1),
    subject      text not null,               -- of an email; the title of a push
    html         text not null,
    text         text not null,               -- the plain text of an email, the text of an SMS, the body of a push
    link         text not null default '',    -- of a push
    data         jsonb not null default '{}', -- of a push: name -> template of a text
    track_opens  boolean,                     -- of an email; null: if it is marketing
    track_clicks boolean,
    variables    text[] not null,             -- the top-level names that the texts use
    request      uuid,                        -- id of the request that made it; of the first version, the template's id
    created_at   timestamptz not null default now(),
    primary key (workspace_id, template_id, version),
    constraint template_versions_request unique (workspace_id, template_id, request), -- a repeated request makes one version
    foreign key (workspace_id, template_id) references templates (workspace_id, id) on delete cascade
);

-- Kinds of marketing that recipients can unsubscribe from by themselves.
create table topics (
    workspace_id uuid not null references workspaces (id),
    id           uuid not null,
    name         text not null check (length(name) between 1 and 200), -- recipients see it
    description  text not null default '',   -- recipients see it
    version      int not null default 1,
    created_at   timestamptz not null default now(),
    updated_at   timestamptz not null default now(),
    primary key (workspace_id, id),
    constraint topics_name unique (workspace_id, name)
);

-- +goose Down
drop table topics;
drop table template_versions;
drop table templates;
drop table audiences;
drop table data_sources;

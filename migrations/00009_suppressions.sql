-- +goose Up

-- Addresses that are not sent to, one row per cause. The key is a hash of channel
-- and address, so that the index that each claim reads stays narrow.
create table suppressions (
    workspace_id uuid not null references workspaces (id),
    key          uuid not null,               -- lemma.Key("suppression/1", channel, address)
    cause        text not null constraint suppressions_cause check (cause in
        ('hard_bounce', 'soft_bounces', 'complaint', 'token_unregistered', 'unsubscribed', 'manual')),
    id           uuid not null,
    channel      text not null check (channel in ('email', 'sms', 'push')),
    address      text not null,               -- canonical
    detail       text not null default '',
    created_at   timestamptz not null default now(),
    written_by   xid8 not null default pg_current_xact_id(),
    constraint suppressions_pkey primary key (workspace_id, key, cause)
);
comment on constraint suppressions_pkey on suppressions is 'a suppression is stored once';
create unique index suppressions_id on suppressions (workspace_id, id);
create index suppressions_written_by on suppressions (workspace_id, written_by);

-- Addresses that have unsubscribed from a topic, by the key of a suppression.
create table topic_unsubscribes (
    workspace_id uuid not null,
    topic_id     uuid not null,
    key          uuid not null,
    created_at   timestamptz not null default now(),
    written_by   xid8 not null default pg_current_xact_id(),
    constraint topic_unsubscribes_pkey primary key (workspace_id, topic_id, key),
    foreign key (workspace_id, topic_id) references topics (workspace_id, id) on delete cascade
);
create index topic_unsubscribes_written_by on topic_unsubscribes (workspace_id, written_by);
comment on constraint topic_unsubscribes_pkey on topic_unsubscribes is 'a recipient unsubscribes from a topic once';

-- Messages that were not delivered for a reason that may pass, until one to the same
-- address is delivered.
create table soft_bounces (
    workspace_id uuid not null references workspaces (id),
    key          uuid not null,               -- of the suppression
    at           timestamptz not null,
    constraint soft_bounces_pkey primary key (workspace_id, key, at)
);

-- +goose Down
drop table soft_bounces;
drop table topic_unsubscribes;
drop table suppressions;

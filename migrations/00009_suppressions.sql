-- +goose Up

-- The transaction that writes a row. It is in generated columns, which no dump has: rows that
-- are restored are new, with all triggers disabled as well. A generated column takes an
-- immutable function only; this one is evaluated once in each statement that writes.
create function writing_transaction() returns xid8 language sql immutable return pg_current_xact_id();

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
    written_by   xid8 not null generated always as (writing_transaction()) stored,
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
    written_by   xid8 not null generated always as (writing_transaction()) stored,
    constraint topic_unsubscribes_pkey primary key (workspace_id, topic_id, key),
    foreign key (workspace_id, topic_id) references topics (workspace_id, id) on delete cascade
);
create index topic_unsubscribes_written_by on topic_unsubscribes (workspace_id, written_by);
comment on constraint topic_unsubscribes_pkey on topic_unsubscribes is 'a recipient unsubscribes from a topic once';

-- The snapshot of a filter that is stored. It is in a generated column, which no dump has: a
-- filter that is restored has none, and is not read.
create function filter_snapshot() returns text language sql immutable
    return nullif(current_setting('lemma.filter_snapshot', true), '');

-- What a process reads of long lists when it starts: the pairs of a workspace that a snapshot
-- sees, as a Bloom filter in parts of a mebibyte. The pairs that others have written since
-- are read from the lists.
create table suppression_filters (
    workspace_id uuid not null references workspaces (id),
    part         int not null,
    parts        int not null,
    form         int not null,                -- of the bits: a process reads its own
    pairs        int not null,                -- that were added
    capacity     int not null,
    bits         bytea not null,
    seen         text generated always as (filter_snapshot()) stored,
    constraint suppression_filters_pkey primary key (workspace_id, part)
);
alter table suppression_filters alter column bits set storage external; -- bits are not compressible
comment on constraint suppression_filters_pkey on suppression_filters is 'a filter of suppressions has each part once';

-- Addresses with messages that were not delivered for a reason that may pass. A message
-- counts once, at its first soft bounce, unless one to the address was delivered later.
create table soft_bounces (
    workspace_id uuid not null references workspaces (id),
    key          uuid not null,               -- of the suppression
    messages     uuid[] not null,             -- lemma.Key("soft-bounce/1", origin, key of the notification); the newest is first
    times        timestamptz[] not null,      -- of the first soft bounce of each message
    delivered_at timestamptz,                 -- the newest delivery to the address that was reported since
    constraint soft_bounces_pkey primary key (workspace_id, key),
    constraint soft_bounces_times check (cardinality(messages) = cardinality(times))
) with (fillfactor = 80);

-- +goose Down
drop table soft_bounces;
drop table suppression_filters;
drop function filter_snapshot();
drop table topic_unsubscribes;
drop table suppressions;
drop function writing_transaction();

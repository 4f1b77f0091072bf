-- +goose Up
-- The keys of direct notifications. A key is unlocked (no row, or one that is over),
-- locked or sealed. Its state is derived from its row and from the status of its
-- notification, so that a seal cannot be lost and a lock cannot expire while its
-- notification waits.

-- The periods in which keys are acquired: a day each. The newest is the current one. A
-- transaction that acquires keys holds a shared advisory lock, and one that begins or
-- ends a period an exclusive one, so that no two transactions acquire keys in different
-- periods at once: direct_keys_pkey then holds for all periods. The first has all keys
-- of the default partition.
create table direct_key_periods (
    id       uuid primary key,                -- the lowest UUIDv7 of the day
    began_at timestamptz not null default now()
);
insert into direct_key_periods (id) values ('00000000-0000-0000-0000-000000000000');

-- Partitioned by period, so that expired keys leave with their partition.
create table direct_keys (
    workspace_id uuid not null,
    period       uuid not null,
    key          uuid not null,               -- 16 bytes of SHA-256 of the key; see lemma.Key
    token        uuid not null,               -- fresh for each acquisition; the key of its notification
    origin_id    uuid not null,               -- of its notification
    request_hash uuid not null,               -- another request under the same key is refused
    max_attempts smallint not null,           -- 1: at_most_once, 2: at_least_once
    stored       boolean not null,            -- its notification is stored; until then the lock expires
    locked_until timestamptz not null,
    seal_for     interval not null,           -- from the end of its notification
    constraint direct_keys_pkey primary key (workspace_id, key, period),
    constraint direct_keys_attempts check (max_attempts between 1 and 2),
    constraint direct_keys_seal check (seal_for between '1 second' and '72 hours')
) partition by range (period);
create table direct_keys_default partition of direct_keys default with (fillfactor = 90);
comment on constraint direct_keys_pkey on direct_keys is 'KeyStates!OneAtATime, KeyStates!AtMostOnce';
comment on constraint direct_keys_attempts on direct_keys is 'KeyStates!AtMostOnce, KeyStates!AtMostTwice';

-- +goose Down
drop table direct_keys;
drop table direct_key_periods;

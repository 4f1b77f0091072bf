-- +goose Up

-- Keys that sign the links of messages. A key is never changed or deleted: what it
-- has signed goes on working.
create table link_keys (
    workspace_id uuid not null references workspaces (id),
    number       int not null constraint link_keys_number check (number between 1 and 65535), -- tokens have it in two bytes
    id           uuid not null,
    secret       bytea not null,              -- sealed; workspace and id are its additional data
    created_at   timestamptz not null default now(),
    constraint link_keys_pkey primary key (workspace_id, number)
);
comment on constraint link_keys_pkey on link_keys is 'a number of a link key has one secret';
create unique index link_keys_id on link_keys (workspace_id, id);

-- +goose Down
drop table link_keys;

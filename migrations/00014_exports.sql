-- +goose Up
-- Files in the blob store, and the exports that make them.

-- Attempts to store content, each under a name of its own. A row is written before the
-- content of its attempt is stored, and deleted after the content is.
create table blobs (
    workspace_id uuid not null,               -- zero: of no workspace
    id           uuid not null,               -- of the attempt
    owner_id     uuid not null,               -- the export or the archive whose content it is
    store        text not null,               -- LEMMA_BLOBS of the process that registered it
    name         text not null,               -- in the store; it has 128 random bits
    status       text not null default 'registered'
        constraint blobs_status check (status in ('registered', 'committed', 'published', 'ended')),
    leased_by    text,
    lease_until  timestamptz,
    bytes        bigint,
    sha256       bytea,
    created_at   timestamptz not null default now(),
    ended_at     timestamptz,
    clean_at     timestamptz,                 -- when the content is deleted next: at the end, and again a day later
    constraint blobs_pkey primary key (workspace_id, id),
    constraint blobs_name unique (workspace_id, name),
    constraint blobs_lease check ((status = 'registered') = (leased_by is not null) and (leased_by is null) = (lease_until is null)),
    constraint blobs_content check (status not in ('committed', 'published') or bytes is not null and sha256 is not null),
    constraint blobs_ended check ((status = 'ended') = (ended_at is not null) and (ended_at is null) = (clean_at is null))
);
create unique index blobs_committed on blobs (workspace_id, owner_id) where status in ('committed', 'published');
create unique index blobs_registered on blobs (workspace_id, owner_id) where status = 'registered';
create index blobs_leases on blobs (lease_until) where status = 'registered';
create index blobs_cleaning on blobs (store, workspace_id, clean_at) where status = 'ended';
comment on constraint blobs_pkey on blobs is 'SideEffects!CommittedOnce';
comment on index blobs_committed is 'SideEffects!CommittedOnce';
comment on index blobs_registered is 'SideEffects!CommittedOnce';
comment on constraint blobs_content on blobs is 'SideEffects!PublishedIsTheCommitted';
comment on constraint blobs_name on blobs is 'SideEffects!PublishedIsTheCommitted';
comment on constraint blobs_lease on blobs is 'SideEffects!CommittedIsKept';

create table exports (
    workspace_id  uuid not null references workspaces (id),
    id            uuid not null,
    type          text not null,
    format        text not null constraint exports_format check (format in ('csv', 'ndjson', 'parquet')),
    filters       jsonb not null default '{}',
    csv_formulas  text not null default 'escape' constraint exports_csv_formulas check (csv_formulas in ('escape', 'keep')),
    status        text not null default 'queued' constraint exports_status check (status in
        ('queued', 'running', 'publishing', 'completed', 'failed', 'cancelled')),
    status_reason text,
    status_detail text,
    attempts      int not null default 0,
    failures      int not null default 0,     -- in a row
    retry_at      timestamptz not null default now(),
    row_count     bigint not null default 0,  -- written by the current attempt
    byte_count    bigint not null default 0,
    created_at    timestamptz not null default now(), -- rows that were created later are left out
    started_at    timestamptz,
    finished_at   timestamptz,
    expires_at    timestamptz,                -- when it is deleted
    constraint exports_pkey primary key (workspace_id, id),
    constraint exports_finished check ((status in ('completed', 'failed', 'cancelled')) = (finished_at is not null)),
    constraint exports_expires check ((finished_at is null) = (expires_at is null))
) with (fillfactor = 70);
create index exports_open on exports (retry_at) where status in ('queued', 'running', 'publishing');
create index exports_expiring on exports (expires_at) where expires_at is not null;

-- Partitions that were copied to the blob store before they were dropped. A partition that was
-- dropped is created again if the clock of the database was ahead: it is another table, with an
-- archive of its own. So is a table that was restored.
create table archives (
    id        uuid not null,
    partition text not null,
    number    int not null default 1,         -- of the archives of partitions of that name
    table_oid oid not null,
    source    text not null,                  -- the table
    month     date not null,
    row_count bigint,
    bytes     bigint,
    stored_at timestamptz,                    -- null: an attempt runs, or has failed
    constraint archives_pkey primary key (id),
    constraint archives_partition unique (partition, number),
    constraint archives_table unique (partition, table_oid),
    constraint archives_stored check ((stored_at is null) = (row_count is null) and (row_count is null) = (bytes is null))
);

-- +goose Down
drop table archives;
drop table exports;
drop table blobs;

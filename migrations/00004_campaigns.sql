-- +goose Up

create table campaigns (
    workspace_id         uuid not null references workspaces (id),
    id                   uuid not null,
    name                 text not null check (length(name) between 1 and 200),
    status               text not null default 'draft' constraint campaigns_status check (status in
        ('draft', 'scheduled', 'preparing', 'sending', 'paused', 'completed', 'cancelled', 'failed')),
    status_reason        text,                -- why it is paused or failed: one of the codes that the API lists
    status_detail        text,                -- the same, for people to read
    audience_id          uuid not null,
    template_id          uuid not null,
    template_version     int not null,        -- fixed when the campaign is edited, not when it is sent
    provider_id          uuid not null,
    strategy             text not null default 'at_least_once' check (strategy in ('at_least_once', 'at_most_once')),
    from_name            text not null default '',
    from_email           text not null,       -- with from_name, reply_to and headers: of an email, otherwise empty
    reply_to             text not null default '',
    headers              jsonb not null default '{}',
    metadata             jsonb not null default '{}',
    scheduled_at         timestamptz,         -- when it is due; set by schedule
    template_error_limit double precision     -- the fraction of messages that may fail to render; null: as configured
        check (template_error_limit between 0 and 1),
    errors_before        bigint not null default 0, -- template errors before the last resume
    ended_before         bigint not null default 0, -- notifications that had ended before the last resume
    transactional        boolean not null default false, -- no marketing: only bounces and complaints stop it
    topic_id             uuid,                -- recipients that have unsubscribed from it are skipped
    conversion_event     text,                -- the event that is a conversion, within conversion_within after the message was sent
    conversion_within    interval,
    send_deadline        timestamptz,         -- notifications not called by then are skipped as expired
    started_at           timestamptz,         -- when send was accepted, or when the schedule became due
    sending_at           timestamptz,         -- when the fan-out began to write notifications
    paused_at            timestamptz,
    resumed_at           timestamptz,         -- when it was last resumed: earlier causes of a pause have ended
    settle_at            timestamptz not null default now(), -- when it is next checked whether it has ended
    unchecked_since      timestamptz,         -- since when old notifications cannot be read again from the audience
    finished_at          timestamptz,         -- completed, cancelled or failed
    version              int not null default 1,
    created_at           timestamptz not null default now(),
    updated_at           timestamptz not null default now(),
    primary key (workspace_id, id),
    foreign key (workspace_id, audience_id) references audiences (workspace_id, id),
    foreign key (workspace_id, template_id, template_version) references template_versions (workspace_id, template_id, version),
    foreign key (workspace_id, provider_id) references providers (workspace_id, id),
    foreign key (workspace_id, topic_id) references topics (workspace_id, id),
    constraint campaigns_conversion check ((conversion_event is null) = (conversion_within is null)),
    constraint campaigns_topic check (topic_id is null or not transactional),
    constraint campaigns_scheduled check (status <> 'scheduled' or scheduled_at is not null)
);
-- Lists by name. Names of campaigns are not unique; other named tables have a
-- unique key that begins so.
create index campaigns_by_name on campaigns (workspace_id, name, id);
-- What a campaign uses is found when that is deleted, whose row is locked meanwhile. The conditions, which all rows
-- fulfil, keep these indexes from other statements.
create index campaigns_audience on campaigns (workspace_id, audience_id) where audience_id is not null;
create index campaigns_template on campaigns (workspace_id, template_id, template_version) where template_id is not null;
create index campaigns_provider on campaigns (workspace_id, provider_id) where provider_id is not null;
create index campaigns_topic on campaigns (workspace_id, topic_id) where topic_id is not null;
create index campaigns_scheduled_at on campaigns (scheduled_at) where status = 'scheduled';
create index campaigns_reading on campaigns (workspace_id, id) where status in ('preparing', 'sending');
-- Campaigns that may have ended. The check of one that has not is postponed.
create index campaigns_settling on campaigns (settle_at) where status in ('sending', 'paused');

-- Actions that were requested of a campaign, by request id. A repeated request
-- has no effect: a second resume could undo a pause in between.
create table campaign_requests (
    workspace_id uuid not null,
    campaign_id  uuid not null,
    id           uuid not null,
    verb         text not null,
    at           timestamptz not null default now(),
    constraint campaign_requests_pkey primary key (workspace_id, campaign_id, id),
    foreign key (workspace_id, campaign_id) references campaigns (workspace_id, id) on delete cascade
);

-- The lease for reading a campaign's audience. Two fan-outs at once write no
-- notification twice (Campaign!AtMostOneNotificationPerRecipient holds by the
-- key of notifications), but only the holder of the lease may finish or fail
-- (Campaign!FailedMeansUnread).
create table fanouts (
    workspace_id uuid not null,
    campaign_id  uuid not null,
    leased_by    text,
    lease_until  timestamptz,
    runs         int not null default 0,      -- how many runs have begun
    source_failures   int not null default 0, -- failures of the data source in a row since a run last wrote a chunk
    internal_failures int not null default 0, -- errors of Lemma's own in a row since then
    crashes      int not null default 0,      -- leases that expired in a row since a run last wrote a notification
    retry_at     timestamptz not null default now(),
    finished_at  timestamptz,                 -- when the whole audience had been read and written
    rows_read    bigint,                      -- rows of the run that finished; more than the audience has if rows repeat
    profiles     bigint,                      -- of a push campaign whose fan-out finished: distinct profile keys
    primary key (workspace_id, campaign_id),
    foreign key (workspace_id, campaign_id) references campaigns (workspace_id, id),
    constraint fanouts_lease check ((leased_by is null) = (lease_until is null))
);
-- Running fan-outs, whose number is limited per workspace and per data source.
create index fanouts_leased on fanouts (workspace_id) where leased_by is not null;

-- One row per chunk of a fan-out: a second count of the notifications, to
-- compare with the counts of the batches.
create table fanout_chunks (
    workspace_id uuid not null,
    origin_id    uuid not null,
    id           uuid not null,
    run          int not null,
    created      int not null,                -- notifications that were inserted
    skipped      jsonb not null default '{}', -- reason -> skipped rows that were inserted
    at           timestamptz not null default now(),
    primary key (workspace_id, origin_id, id)
);
comment on constraint fanout_chunks_pkey on fanout_chunks is 'Campaign!CountsBalance';

-- +goose Down
drop table fanout_chunks;
drop table fanouts;
drop table campaign_requests;
drop table campaigns;

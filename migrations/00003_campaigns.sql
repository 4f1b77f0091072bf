-- +goose Up

create table campaigns (
    workspace_id     uuid not null references workspaces (id),
    id               uuid not null,
    name             text not null check (length(name) between 1 and 200),
    status           text not null default 'draft'
        constraint campaigns_status check (status in ('draft', 'scheduled', 'preparing', 'sending', 'paused', 'completed', 'cancelled', 'failed')),
    status_reason    text,                    -- why it is paused or failed: one of the codes that the API lists
    status_detail    text,                    -- the same for a person to read
    audience_id      uuid not null,
    template_id      uuid not null,
    template_version int not null,            -- fixed when the campaign is edited, not when it is sent
    provider_id      uuid not null,
    strategy         text not null default 'at_least_once' check (strategy in ('at_least_once', 'at_most_once')),
    from_name        text not null default '',
    from_email       text not null,
    reply_to         text not null default '',
    headers          jsonb not null default '{}',
    metadata         jsonb not null default '{}',
    scheduled_at     timestamptz,             -- when it is due; set by schedule
    template_error_limit double precision check (template_error_limit between 0 and 1), -- the share of messages that may fail to render; null: as configured
    errors_before    bigint not null default 0, -- template errors before it was last resumed
    ended_before     bigint not null default 0, -- notifications that had ended by then
    send_deadline    timestamptz,             -- who was not sent to by then is skipped as expired
    started_at       timestamptz,             -- when send was accepted or the schedule fell due
    sending_at       timestamptz,             -- when the fan-out began to write notifications
    paused_at        timestamptz,
    unchecked_since  timestamptz,             -- since when recipients that have waited for long cannot be read again from the audience
    finished_at      timestamptz,             -- completed, cancelled or failed
    version          int not null default 1,
    created_at       timestamptz not null default now(),
    updated_at       timestamptz not null default now(),
    primary key (workspace_id, id),
    foreign key (workspace_id, audience_id) references audiences (workspace_id, id),
    foreign key (workspace_id, template_id, template_version) references template_versions (workspace_id, template_id, version),
    foreign key (workspace_id, provider_id) references providers (workspace_id, id),
    constraint campaigns_scheduled check (status <> 'scheduled' or scheduled_at is not null)
);
-- Lists by name. Other things with a name have a unique key that begins so, and API
-- keys are few.
create index campaigns_by_name on campaigns (workspace_id, name, id);
create index campaigns_working on campaigns (id) where status in ('scheduled', 'preparing', 'sending', 'paused');

-- The right to stream a campaign's audience, and to say what came of it. Two
-- fan-outs that write at once are harmless (Campaign!AtMostOneNotificationPerRecipient
-- holds by the key of notifications); but only the holder of the lease may
-- finish or fail (Campaign!FailedMeansUnread).
create table fanouts (
    workspace_id uuid not null,
    campaign_id  uuid not null,
    leased_by    text,
    lease_until  timestamptz,
    runs         int not null default 0,      -- how often it was begun
    failures     int not null default 0,      -- how often the source failed it
    crashes      int not null default 0,      -- how often in a row its lease ran out, since a run wrote somebody down
    retry_at     timestamptz not null default now(),
    finished_at  timestamptz,                 -- the whole audience was read and written
    rows_read    bigint,                      -- rows of the run that finished; above the audience when rows repeat
    primary key (workspace_id, campaign_id),
    foreign key (workspace_id, campaign_id) references campaigns (workspace_id, id),
    constraint fanouts_lease check ((leased_by is null) = (lease_until is null))
);
-- Those that are being read: a workspace and a data source have so many places.
create index fanouts_leased on fanouts (workspace_id) where leased_by is not null;

-- +goose Down
drop table fanouts, campaigns;

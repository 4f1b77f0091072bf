-- +goose Up
-- What recipients do after messages: opens, clicks, conversions, and that they unsubscribe.
-- Links are stored by their number in the template, so that no personal data of a URL is.

-- Appended as they come. A row is deleted in the transaction that applies it.
create table tracking_queue (
    workspace_id uuid not null,
    origin_id    uuid not null,
    key          uuid not null,               -- with origin_id: the notification
    id           uuid not null,
    type         text not null constraint tracking_queue_type check (type in
        ('opened', 'clicked', 'probed', 'converted', 'unsubscribed')),
    link         int not null default 0,      -- number of the link in its template
    times        int not null default 1 constraint tracking_queue_times check (times > 0), -- requests; more than 1 for a flood
    machine      text,                        -- why the request is a machine's; null: it does not show
    occurred_at  timestamptz not null,
    recorded_at  timestamptz not null default now(),
    constraint tracking_queue_pkey primary key (workspace_id, origin_id, key, id)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
comment on constraint tracking_queue_pkey on tracking_queue is 'an open or click is counted once';
-- Every row fulfils the condition. Only statements that have it use the index: those that look for
-- the events of a notification use the primary key, also after a vacuum of the empty queue.
create index tracking_queue_due on tracking_queue (workspace_id, occurred_at) where times > 0;

-- The applied ones, and HEAD requests ('probed').
create table tracking_events (
    workspace_id uuid not null,
    origin_id    uuid not null,
    key          uuid not null,
    id           uuid not null,
    type         text not null constraint tracking_events_type check (type in
        ('opened', 'clicked', 'probed', 'converted', 'unsubscribed')),
    link         int not null,
    times        int not null default 1,
    machine      text constraint tracking_events_machine check (machine in
        ('apple_privacy', 'gmail_proxy', 'yahoo_proxy', 'prefetch', 'scanner', 'too_fast', 'several_links', 'probed_before', 'flood')),
    occurred_at  timestamptz not null,
    constraint tracking_events_pkey primary key (workspace_id, origin_id, key, id)
) partition by range (origin_id);
create table tracking_events_default partition of tracking_events default;
comment on constraint tracking_events_pkey on tracking_events is 'an open or click is counted once';

-- The numbers of each notification, without opens and clicks of machines, and when the
-- first of them occurred, so that an experiment counts them until its cut-off.
create table engagements (
    workspace_id       uuid not null,
    origin_id          uuid not null,
    key                uuid not null,
    content_id         uuid not null,
    opens              int not null,
    clicks             int not null,
    conversions        int not null default 0,
    unsubscribes       int not null default 0,
    opened_at          timestamptz,
    clicked_at         timestamptz,
    machine_opened_at  timestamptz,
    machine_clicked_at timestamptz,
    constraint engagements_pkey primary key (workspace_id, origin_id, key)
) partition by range (origin_id);
create table engagements_default partition of engagements default with (fillfactor = 80);
comment on constraint engagements_pkey on engagements is 'a notification is counted once as opened, clicked, converted and unsubscribed';

-- Their sums by content: a campaign, a variant, or a send node of a version.
create table engagement_counts (
    workspace_id   uuid not null,
    origin_id      uuid not null,
    content_id     uuid not null,
    opens          bigint not null,
    unique_opens   bigint not null,
    clicks         bigint not null,
    unique_clicks  bigint not null,
    machine_opens  bigint not null,
    machine_clicks bigint not null,
    conversions    bigint not null default 0, -- notifications, as are unsubscribes
    unsubscribes   bigint not null default 0,
    constraint engagement_counts_pkey primary key (workspace_id, origin_id, content_id),
    constraint engagement_counts_unique check (unique_opens >= 0 and unique_opens <= opens and unique_clicks >= 0 and unique_clicks <= clicks)
) with (fillfactor = 50);
comment on constraint engagement_counts_pkey on engagement_counts is 'an open or click is counted once';

-- Until when the rows of a queue were written: trigger events by received_at, settled notifications by
-- the time of their attempts, and orphaned ones (also in settlement_queue) by that of the evidence that
-- resolved them. A row each, so that none waits for another.
create table conversion_positions (
    queue text not null constraint conversion_positions_queue check (queue in ('conversion_queue', 'settlement_queue', 'resolutions')),
    until timestamptz not null default now(),
    constraint conversion_positions_pkey primary key (queue)
);
insert into conversion_positions (queue) values ('conversion_queue'), ('settlement_queue'), ('resolutions');
comment on constraint conversion_positions_pkey on conversion_positions is 'a conversion is counted once';

-- Trigger events that may be conversions. A row is deleted in the transaction that queues the conversions.
create table conversion_queue (
    workspace_id uuid not null,
    received_at  timestamptz not null,
    key          uuid not null,               -- of the trigger event
    constraint conversion_queue_pkey primary key (workspace_id, received_at, key)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
comment on constraint conversion_queue_pkey on conversion_queue is 'a conversion is counted once';

-- Notifications that evidence has settled or resolved as accepted: their profiles may have had events before. A row
-- is deleted in the transaction that queues the conversion, or when no event before the settlement fits.
create table settlement_queue (
    workspace_id uuid not null,
    settled_at   timestamptz not null,
    batch_id     uuid not null,               -- with ordinal: the notification
    ordinal      smallint not null,
    read_until   timestamptz,                 -- events that were received until then do not fit; null: none is read
    constraint settlement_queue_pkey primary key (workspace_id, settled_at, batch_id, ordinal)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
comment on constraint settlement_queue_pkey on settlement_queue is 'a conversion is counted once';

create table link_counts (
    workspace_id   uuid not null,
    origin_id      uuid not null,
    content_id     uuid not null,
    link           int not null,              -- number in the template of the content
    clicks         bigint not null,
    machine_clicks bigint not null,
    constraint link_counts_pkey primary key (workspace_id, origin_id, content_id, link)
) with (fillfactor = 50);
comment on constraint link_counts_pkey on link_counts is 'an open or click is counted once';

-- +goose Down
drop table link_counts;
drop table settlement_queue;
drop table conversion_queue;
drop table conversion_positions;
drop table engagement_counts;
drop table engagements;
drop table tracking_events;
drop table tracking_queue;

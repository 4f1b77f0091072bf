-- +goose Up
-- Experiments of campaigns (A/B tests): variants, decisions, what is recorded.

create table iterations (
    workspace_id     uuid not null,
    id               uuid not null,
    campaign_id      uuid not null,
    status           text not null default 'draft' constraint iterations_status check (status in
        ('draft', 'sampling', 'running', 'evaluating', 'inconclusive', 'decided', 'rolling_out', 'completed', 'cancelled')),
    status_reason    text,                    -- a code: why it is inconclusive or cancelled, or what an evaluation waits for
    status_detail    text,                    -- the same, for people to read
    sample_percent   double precision not null check (sample_percent > 0 and sample_percent <= 100),
    holdout_percent  double precision not null check (holdout_percent >= 0 and holdout_percent <= 50),
    metric           text constraint iterations_metric_kind
        check (metric in ('event', 'sql', 'unique_opens', 'unique_clicks')), -- null: a split without a winner
    event_name       text,
    data_source_id   uuid,
    sql              text,
    duration         interval,                -- from the start to the cut-off, or
    evaluate_at      timestamptz,             -- the cut-off
    min_sample       bigint not null default 0 check (min_sample >= 0),
    confidence       double precision not null default 0.95 check (confidence >= 0.5 and confidence < 1),
    on_inconclusive  text not null default 'hold' check (on_inconclusive in ('best', 'control', 'hold')),
    base_rate        double precision not null default 0.05, -- with effect: what it is planned to find
    effect           double precision not null default 0.01,
    guardrail        text constraint iterations_guardrail_kind check (guardrail in ('unsubscribes', 'complaints')), -- null: none
    guardrail_limit  double precision check (guardrail_limit > 0 and guardrail_limit < 1), -- fraction of sent notifications
    guardrail_at     timestamptz,             -- when the guardrail is checked next; null: not before the evaluation
    guardrail_checks smallint not null default 0,
    started_at       timestamptz,
    cut_off_at       timestamptz,             -- later events do not count; fixed at the start
    measure_at       timestamptz,             -- when its results are measured next
    extensions       smallint not null default 0, -- how often a person has moved the cut-off
    evaluating_by    text,                    -- a fresh token for every claim
    evaluating_until timestamptz,
    retry_at         timestamptz not null default now(), -- of an evaluation that failed
    failures         int not null default 0,  -- evaluations in a row that failed
    winner           smallint,
    decided_by       text constraint iterations_decided_by check (decided_by in ('evaluation', 'on_inconclusive', 'person')),
    decided_at       timestamptz,
    verdict          jsonb,                   -- the numbers, the method and the result
    rollout_id       uuid,                    -- the content of the rollout
    created_at       timestamptz not null default now(),
    constraint iterations_pkey primary key (workspace_id, id),
    constraint iterations_campaign unique (workspace_id, campaign_id),
    foreign key (workspace_id, campaign_id) references campaigns (workspace_id, id) on delete cascade,
    foreign key (workspace_id, data_source_id) references data_sources (workspace_id, id),
    constraint iterations_metric check (case metric
        when 'event' then event_name is not null and data_source_id is null and sql is null
        when 'sql' then event_name is null and data_source_id is not null and sql is not null
        else event_name is null and data_source_id is null and sql is null end
        and (metric is not null) = (duration is not null or evaluate_at is not null) and (duration is null or evaluate_at is null)),
    -- Each is an entry of the timeline.
    constraint iterations_extensions check (extensions between 0 and 100),
    constraint iterations_guardrail check ((guardrail is null) = (guardrail_limit is null)),
    -- Claimed exactly while it has a token, and only while there is something to decide.
    constraint iterations_claim check ((evaluating_by is null) = (evaluating_until is null)
        and (evaluating_by is null or status in ('sampling', 'running', 'evaluating', 'inconclusive'))),
    -- A winner is rolled out, and only a winner.
    constraint iterations_decided check ((winner is null) = (decided_by is null) and (winner is null) = (decided_at is null)
        and (winner is null) = (rollout_id is null)
        and (winner is not null or status not in ('decided', 'rolling_out'))
        and (winner is null or status in ('decided', 'rolling_out', 'completed', 'cancelled')))
);
create index iterations_data_source on iterations (workspace_id, data_source_id) where data_source_id is not null;
comment on constraint iterations_claim on iterations is 'CampaignIteration!WinnerOnce';
comment on constraint iterations_decided on iterations is 'CampaignIteration!RolloutIsRecorded';
create index iterations_guarded on iterations (guardrail_at) where guardrail_at is not null and status in ('sampling', 'running');
create index iterations_counting on iterations (workspace_id, event_name)
    where event_name is not null and status in ('sampling', 'running', 'evaluating'); -- the events that are kept for them
create index iterations_measured on iterations (measure_at) where status in ('sampling', 'running');
create index iterations_inconclusive on iterations (workspace_id) where status = 'inconclusive';
create index iterations_evaluated on iterations (cut_off_at) where status in ('running', 'evaluating');

create table iteration_variants (
    workspace_id     uuid not null,
    iteration_id     uuid not null,
    ordinal          smallint not null check (ordinal >= 0), -- the first is the control
    name             text not null check (length(name) between 1 and 100),
    weight           int not null check (weight > 0),
    template_id      uuid,                    -- null: the campaign's
    template_version int,
    subject          text,
    preheader        text,
    from_name        text,
    send_offset      interval not null default '0' check (send_offset >= '0'),
    content_id       uuid not null,           -- of the sample's notifications
    stopped_at       timestamptz,             -- when the guardrail stopped it: it is not sent any more, and cannot win
    stopped_reason   text,
    constraint iteration_variants_pkey primary key (workspace_id, iteration_id, ordinal),
    constraint iteration_variants_name unique (workspace_id, iteration_id, name),
    foreign key (workspace_id, iteration_id) references iterations (workspace_id, id) on delete cascade,
    foreign key (workspace_id, template_id, template_version) references template_versions (workspace_id, template_id, version)
);
create index iteration_variants_template on iteration_variants (workspace_id, template_id, template_version)
    where template_id is not null;
alter table iterations add constraint iterations_winner
    foreign key (workspace_id, id, winner) references iteration_variants (workspace_id, iteration_id, ordinal);
comment on constraint iterations_winner on iterations is 'CampaignIteration!WinnerCompeted';

-- The status only goes forward, its last two do not change, and a winner never changes.
-- +goose StatementBegin
create function iterations_forward() returns trigger language plpgsql as $$
declare
    statuses constant text[] := array['draft', 'sampling', 'running', 'evaluating', 'inconclusive', 'decided', 'rolling_out',
        'completed', 'cancelled'];
begin
    if array_position(statuses, new.status) < array_position(statuses, old.status)
        or old.status = 'completed' and new.status <> old.status then
        raise exception 'an iteration that is % does not become %', old.status, new.status using errcode = 'check_violation';
    end if;
    if old.winner is not null and new.winner is distinct from old.winner then
        raise exception 'the winner of an iteration does not change' using errcode = 'check_violation';
    end if;
    return new;
end
$$;
-- +goose StatementEnd
create trigger iterations_forward before update on iterations for each row execute function iterations_forward();
comment on trigger iterations_forward on iterations is 'CampaignIteration!OnlyForward';

-- What happened to an iteration, appended.
create table iteration_log (
    workspace_id uuid not null,
    iteration_id uuid not null,
    id           uuid not null,
    at           timestamptz not null default now(),
    event        text not null constraint iteration_log_event check (event in
        ('started', 'sampled', 'evaluated', 'evaluation_failed', 'extended', 'decided', 'held', 'rollout_started', 'completed', 'stopped',
         'cancelled', 'variant_stopped')),
    detail       text not null default '',
    primary key (workspace_id, iteration_id, id)
);

-- The recipients of a sample as hashes of their profile keys: one row for each
-- chunk of the fan-out and variant, or several. Deleted when the iteration ends.
create table iteration_members (
    workspace_id uuid not null,
    origin_id    uuid not null,               -- the campaign
    id           uuid not null,
    ordinal      smallint not null,           -- of the variant; -1 is the holdout
    profiles     bytea not null,              -- 8 bytes each
    primary key (workspace_id, origin_id, id)
);
alter table iteration_members alter column profiles set storage external; -- hashes cannot be compressed
-- A row has up to 1,000 hashes, which is a page: values of their own would be read 2 kB at a time.
alter table iteration_members set (toast_tuple_target = 8160);

-- What was measured of each variant, appended.
create table iteration_results (
    workspace_id uuid not null,
    iteration_id uuid not null,
    at           timestamptz not null,
    ordinal      smallint not null,           -- of the variant; -1 is the holdout
    recipients   bigint not null,
    sent         bigint not null,
    failed       bigint not null,
    skipped      bigint not null,
    converted    bigint,                      -- null: without a metric
    excluded     bigint not null,             -- opened or clicked by machines only, which the metric does not count
    delivered    bigint not null,
    opens        bigint not null,             -- notifications that were opened, without machines
    clicks       bigint not null,             -- notifications in which a link was clicked, without machines
    unsubscribes bigint not null,
    complaints   bigint not null,
    written      bigint not null,             -- notifications: sent, failed, skipped, and those that wait
    primary key (workspace_id, iteration_id, at, ordinal)
);

-- +goose Down
drop table iteration_results;
drop table iteration_members;
drop table iteration_log;
alter table iterations drop constraint iterations_winner;
drop table iteration_variants;
drop table iterations;
drop function iterations_forward();

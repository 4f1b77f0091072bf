-- +goose Up
-- Events and enrollments. The enrollment is the only hot row, and it is narrow:
-- the trigger and every step are appended to other tables.

-- Events that customers' systems send about profiles.
create table trigger_events (
    workspace_id uuid not null,
    key          uuid not null,               -- derived from the sender's id of the event; without an id, a new one
    source_id    text,                        -- the sender's id of the event, if there is one
    profile_key  text not null,
    name         text not null,
    properties   text not null default '{}',  -- a JSON object
    occurred_at  timestamptz not null,        -- the event's own time; recurrence uses it
    received_at  timestamptz not null default now(), -- its place in the order of events; conditions and waits use it
    constraint trigger_events_once primary key (workspace_id, key)
);
comment on constraint trigger_events_once on trigger_events is 'a repeated event is recorded once';
create index trigger_events_profile on trigger_events (workspace_id, profile_key, name, received_at);
create index trigger_events_age on trigger_events (received_at);

-- One profile in one flow. It moves by compare-and-set on node and step, so a
-- worker that finds it moved leaves it alone.
create table enrollments (
    workspace_id   uuid not null,
    id             uuid not null,
    flow_id        uuid not null,
    version        int not null,
    shard          smallint not null,
    uniqueness_key uuid not null,             -- contains the recurrence policy; held in enrollment_keys unless it was refused
    overlap_key    uuid not null,             -- zero, or the enrollment's own id if the version allows overlap
    profile_key    text not null,
    status         text not null default 'active'
        constraint enrollments_status check (status in ('active', 'completed', 'exited', 'refused')),
    node           text not null,             -- its current node; '' before the start node, while the profile is not checked yet
    step           int not null default 0,    -- how often it was moved
    moved          boolean not null default false, -- an admin has moved it to a node that may have acted already
    waiting_since  timestamptz,               -- when the wait of its node began; null: it has not entered the node yet
    resume_at      timestamptz,               -- when it is due, by the database's clock
    first_due_at   timestamptz,               -- when it first became due, if that is not resume_at: by an event, a timeout or a move
    awaits         text,                      -- the event that it waits for
    matched_event  uuid,                      -- the event that ended the wait
    answer_step    int,                       -- the step whose webhook message it waits for; null once it is answered
    failures       smallint not null default 0, -- failures of its data source in a row
    blocked_reason text,                      -- why it cannot proceed
    source         text not null constraint enrollments_source check (source in ('event', 'audience', 'direct')),
    enrolled_at    timestamptz not null default now(),
    ended_at       timestamptz,
    exit_reason    text,
    constraint enrollments_pkey primary key (workspace_id, id),
    -- An active enrollment is due at some time.
    constraint enrollments_due check ((status = 'active') = (resume_at is not null)),
    constraint enrollments_ended check ((status = 'active') = (ended_at is null))
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);
comment on constraint enrollments_pkey on enrollments is 'FlowEngine!EachStepOnce';
comment on constraint enrollments_due on enrollments is 'WaitResume!DueLeadsToResumed';
-- Also finds the active enrollments of a profile for an event.
create unique index enrollments_active on enrollments (workspace_id, profile_key, flow_id, overlap_key) where status = 'active';
comment on index enrollments_active is 'FlowEngine!AtMostOneActiveEnrollment';
-- Those that are active. The shard comes first and the workspace late, so that a planner without
-- statistics does not use it to find enrollments by workspace, flow or profile. Its condition is not that
-- of enrollments_active, so that a query can allow one of the two.
create index enrollments_waiting on enrollments (shard, flow_id, workspace_id, resume_at) where resume_at is not null;
-- Enrollments that are retried once a failed data source answers again.
create index enrollments_blocked on enrollments (workspace_id, flow_id, resume_at) where blocked_reason is not null;
-- A profile's ended enrollments. An index of the active ones as well would be
-- written at every step.
create index enrollments_past on enrollments (workspace_id, profile_key, flow_id) where status <> 'active';

-- Which enrollment holds a uniqueness key. It is a table of its own, because as
-- an index of enrollments it would be written at every step. A key is inserted
-- by the statement that enrolls, and deleted when the enrollment is refused at
-- the start, so that the trigger may come again.
create table enrollment_keys (
    workspace_id   uuid not null,
    flow_id        uuid not null,
    uniqueness_key uuid not null,
    enrollment_id  uuid not null,
    constraint enrollment_keys_once primary key (flow_id, uniqueness_key, workspace_id)
);
comment on constraint enrollment_keys_once on enrollment_keys is 'FlowEngine!OneEnrollmentPerKey';

-- The steps of an enrollment, appended. Step 0 is the enrollment itself, with
-- the trigger's data.
create table enrollment_steps (
    workspace_id  uuid not null,
    enrollment_id uuid not null,
    step          int not null,
    version       int not null,
    node          text not null,
    event         text not null constraint enrollment_steps_event check (event in
        ('enrolled', 'refused', 'checked', 'sent', 'skipped', 'resumed', 'zone_unknown', 'timed_out', 'branched', 'split',
         'webhook', 'answered', 'moved', 'completed', 'exited')),
    data          text,                       -- a JSON object: what decided the step
    at            timestamptz not null default now(),
    constraint enrollment_steps_pkey primary key (workspace_id, enrollment_id, step)
) partition by range (enrollment_id);
create table enrollment_steps_default partition of enrollment_steps default;
comment on constraint enrollment_steps_pkey on enrollment_steps is 'FlowEngine!EachStepOnce';

-- Triggers that enrolled no profile, with the reason.
create table refusals (
    workspace_id  uuid not null,
    flow_id       uuid not null,
    key           uuid not null,              -- of the trigger; a repeated trigger is refused once
    profile_key   text not null,
    reason        text not null constraint refusals_reason check (reason in
        ('already_enrolled', 'already_active', 'filtered', 'condition_error', 'paused', 'not_live', 'no_profile', 'missing_field', 'too_many_active')),
    detail        text,
    event_key     uuid,                       -- the event that triggered
    enrollment_id uuid,                       -- the conflicting enrollment
    source        text not null,
    at            timestamptz not null default now(),
    constraint refusals_pkey primary key (workspace_id, flow_id, key)
);
create index refusals_profile on refusals (workspace_id, flow_id, profile_key, at);
create index refusals_reason on refusals (workspace_id, flow_id, reason, at); -- the newest, and counts
create index refusals_age on refusals (at);
create index refusals_behind on refusals (workspace_id, enrollment_id, at) where enrollment_id is not null; -- triggers that an enrollment refused

-- +goose Down
drop table refusals;
drop table enrollment_steps;
drop table enrollment_keys;
drop table enrollments;
drop table trigger_events;

-- +goose Up
-- Changes with their actors: a row is written by the transaction of the change. Rows leave by
-- partition only.
create table audit_log (
    workspace_id  uuid not null,
    id            uuid not null,               -- UUIDv7
    actor_type    text not null constraint audit_log_actor check (actor_type in ('api_key', 'cli', 'link')),
    actor_id      uuid,                        -- of the API key
    actor_name    text not null default '',    -- of the user of the command line
    action        text not null,               -- the operation of openapi.yaml
    resource_type text not null,
    resource_id   text not null default '',    -- as the API writes it
    request_id    text not null default '',
    at            timestamptz not null default now(),
    constraint audit_log_pkey primary key (workspace_id, id)
) partition by range (id);
create table audit_log_default partition of audit_log default;
comment on constraint audit_log_pkey on audit_log is 'a change is recorded once';
create index audit_log_resource on audit_log (workspace_id, resource_id, id) where resource_id <> '';

-- +goose StatementBegin
create function audit_log_append_only() returns trigger language plpgsql as $$
begin
    raise exception 'rows of the audit log do not change' using errcode = 'check_violation';
end
$$;
-- +goose StatementEnd
create trigger audit_log_append_only before update or delete on audit_log for each row execute function audit_log_append_only();
comment on trigger audit_log_append_only on audit_log is 'rows of the audit log do not change';

-- +goose Down
drop table audit_log;
drop function audit_log_append_only;

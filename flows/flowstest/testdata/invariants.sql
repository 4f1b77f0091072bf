-- The properties of flows. It returns a row for each violation, and none if all
-- properties hold. $1 is the workspace.
with e as (select * from enrollments where workspace_id = $1),
s as (select * from enrollment_steps where workspace_id = $1),
stepped as (
    select enrollment_id, count(*) as n, min(step) as first, max(step) as last,
        count(*) filter (where event in ('completed', 'exited', 'refused', 'failed')) as ends,
        count(*) filter (where event = 'sent' or event = 'skipped'
            and data::json->>'reason' not in ('already_sent', 'already_skipped', 'already_called', 'message_too_large')) as messages
    from s group by enrollment_id
),
written as (
    select n.enrollment_id, n.key, c.node from notifications n
    left join batches b on b.workspace_id = n.workspace_id and b.origin_id = n.origin_id and b.id = n.batch_id
    left join contents c on c.workspace_id = n.workspace_id and c.id = b.content_id
    where n.workspace_id = $1 and n.enrollment_id is not null
),
counted as (
    select flow_id, version, node, event, sum(processed) as n from flow_node_counts
    where workspace_id = $1 and event not in ('enrolled', 'moved', 'messages_skipped') group by flow_id, version, node, event
),
happened as (
    select e.flow_id, s.version, s.node, s.event, count(*) as n from s join e on e.id = s.enrollment_id
    where s.event not in ('enrolled', 'moved') group by e.flow_id, s.version, s.node, s.event
)
select 'AtMostOneActiveEnrollment: active twice' as fault, profile_key || ' in ' || flow_id as place
from e where status = 'active' and overlap_key = '00000000-0000-0000-0000-000000000000' group by flow_id, profile_key having count(*) > 1
union all
select 'OneEnrollmentPerKey: enrolled twice', profile_key || ' in ' || flow_id
from e where status <> 'refused' group by flow_id, uniqueness_key, profile_key having count(*) > 1
union all
select 'OneEnrollmentPerKey: an enrollment without its key, or a refused one with it', e.id::text
from e left join enrollment_keys k
    on k.workspace_id = e.workspace_id and k.flow_id = e.flow_id and k.uniqueness_key = e.uniqueness_key and k.enrollment_id = e.id
where (k.enrollment_id is null) <> (e.status = 'refused')
union all
select 'OneEnrollmentPerKey: a key without an enrollment', k.enrollment_id::text
from enrollment_keys k left join e on e.id = k.enrollment_id where k.workspace_id = $1 and e.id is null
union all
select 'AtMostOneNotificationPerNode: two messages of one node', enrollment_id || ' at ' || node
from written where node is not null group by enrollment_id, node having count(*) > 1
union all
select 'AtMostOneNotificationPerNode: a message without its step, or the reverse', enrollment_id::text
from stepped left join (select enrollment_id, count(*) as n from written group by enrollment_id) w using (enrollment_id)
where messages <> coalesce(w.n, 0)
union all
select 'EachStepOnce: a gap or a double in the steps', e.id::text from e left join stepped t on t.enrollment_id = e.id
where t.n is null or t.first <> 0 or t.last <> e.step or t.n <> e.step + 1
union all
select 'NoActionAfterExit: the end is not the last step', e.id::text
from e join stepped t on t.enrollment_id = e.id join s on s.enrollment_id = e.id and s.step = t.last
where t.ends <> (e.status <> 'active')::int or (e.status <> 'active' and s.event <> e.status)
union all
select 'NoEnrollmentStranded: on a node that does not exist', e.id || ' at ' || e.node || ' of version ' || e.version
from e left join flow_versions v
    on v.workspace_id = e.workspace_id and v.flow_id = e.flow_id and v.version = e.version and v.status = 'published'
where v.version is null or (e.status = 'active' and e.node <> '' and not v.definition::jsonb->'nodes' ? e.node)
union all
select 'NoEnrollmentStranded: not the last step''s version', e.id::text
from e join stepped t on t.enrollment_id = e.id join s on s.enrollment_id = e.id and s.step = t.last where s.version <> e.version
union all
select 'EachStepOnce: the counts of a node differ from the steps',
    flow_id || ' ' || version || ' ' || node || ' ' || event || ': ' || coalesce(counted.n, 0) || ' counted, '
    || coalesce(happened.n, 0) || ' stepped'
from counted full join happened using (flow_id, version, node, event) where counted.n is distinct from happened.n
union all
select 'an archived flow with active enrollments and no open move', f.id::text from flows f
where f.workspace_id = $1 and f.status = 'archived' and exists (select from e where e.flow_id = f.id and e.status = 'active')
    and not exists (select from flow_moves m where m.workspace_id = f.workspace_id and m.flow_id = f.id and m.finished_at is null)

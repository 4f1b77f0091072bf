package enrollment

// A prepared statement keeps the plan that was made when its tables were empty and had
// no statistics. The statements of flows therefore have forms that leave a planner one
// good plan. TestHotStatementsHaveGoodPlans checks the plans on nine databases. Some comments
// refer to these forms by name:
//
//   - "limit parameter": `from (select ... from unnest($2) limit $3) r`. The limit cuts
//     nothing off. A planner expects few rows for a limit that it does not know, and
//     joins by the primary key. Otherwise it may hash all enrollments.
//   - "workspace as a column": `select $1 as workspace_id, r.*`, joined by both columns of
//     the primary key. With $1 in the condition itself, an index that begins with the
//     workspace alone looks as cheap while the table is empty.
//   - "one by one": see OneByOne. An `id = any($2)` may read the whole table.
//   - "ended_at is null": instead of status = 'active', which would allow the partial
//     indexes of active enrollments. They do not have the id, so each row that is found
//     by the id would cost a scan of a workspace or a shard.
//   - "resume_at is not null": instead of status = 'active' where only enrollments_waiting is good. It has that
//     condition, which a comparison of resume_at implies, and enrollments_active has not: while statistics
//     have no active enrollment, both look as cheap. `(resume_at <= now()) is true` does not imply it.
//   - "first row by a subquery": `(select resume_at ... order by resume_at limit 1) <=
//     now()`, or `is null`, instead of exists, for which a planner may join and read all
//     waiting enrollments. Only enrollments_waiting has that order.
//   - "order by the index": `overlap_key >= zero ... order by overlap_key`, which is true of
//     all rows. Only enrollments_active has that order. Ordered by the id, or not at all, a
//     planner may read all enrollments of a workspace. Active and ended enrollments are
//     read by two queries for the same reason: each has its own partial index.
//   - "name and time as a row": `(v.name, v.received_at) > (r.name, r.after) order by v.name,
//     v.received_at`. Only trigger_events_profile can be read by it and has that order. With the
//     time as a condition of its own, trigger_events_age looks as cheap while few profiles
//     have events, and has the events of all workspaces.
//   - "values as bounds": `resume_at > $4 and resume_at <= $5`. Expressions over other
//     tables would be filters behind the index, which then reads all that wait.
//   - "filter in order": `(r.id in (select ...)) is true`, instead of a join, which may
//     change the order of the rows and so that of the locks.
//   - "update by insert": `insert ... on conflict do update` of rows that exist. It finds
//     them by their key, whatever the statistics are.
//   - "rows by ctid": `ctid = any(array(select e.ctid from OneByOne ...))`, to delete rows
//     in the order of their ids, which a delete with a join does not have.
//   - "offset 0": keeps a subquery from being merged into a join that reads the table.

// OneByOne are the ids of $2 in their order, each to be looked up by the whole primary key.
const OneByOne = `(select unnest($2::uuid[]) as id order by 1) r cross join lateral`

// AnyShard is true of every row. It lets a query for the active enrollments of a flow use
// enrollments_waiting, which begins with the shard.
const AnyShard = `shard = any('{0,1,2,3}'::smallint[])`

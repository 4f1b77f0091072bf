package exports

// The rows of batches are read in the order of the batches, so that the indexes of their
// tables are read in order too. The subqueries with `offset 0` keep their plan: one batch
// at a time, each table by its key, with or without statistics.

// sentNotifications are the notifications of a page of batches.
const sentNotifications = `
	select {keep}, uuid_send(p.origin_id) || uuid_send(n.key), c.campaign_id, c.flow_id, n.enrollment_id, c.node, c.channel,
		n.profile_key, n.address, n.status, n.reason, n.attempts::int, n.code, n.carrier_id, n.detail, coalesce(d.state, 'unknown'),
		n.created_at, n.ended_at, d.at
	from unnest($2::uuid[], $3::uuid[]) p (origin_id, id)
	cross join lateral (
		select c.flow_id, c.node, c.channel, m.id as campaign_id from batches b
		left join lateral (
			select c.flow_id, c.node, c.channel from contents c where c.workspace_id = $1 and c.id = b.content_id offset 0
		) c on true
		left join lateral (select m.id from campaigns m where m.workspace_id = $1 and m.id = p.origin_id offset 0) m on true
		where b.workspace_id = $1 and b.origin_id = p.origin_id and b.id = p.id offset 0
	) c
	cross join lateral (
		select * from notification_status n where n.workspace_id = $1 and n.origin_id = p.origin_id and n.batch_id = p.id offset 0
	) n
	left join lateral (
		select d.state, d.at from deliveries d where d.workspace_id = $1 and d.origin_id = p.origin_id and d.key = n.key offset 0
	) d on true`

// skippedNotifications are those that were skipped before they had a batch.
const skippedNotifications = `
	select {keep}, uuid_send(n.origin_id) || uuid_send(n.key), m.id, c.flow_id, n.enrollment_id, c.node, c.channel,
		n.profile_key, n.address, n.status, n.skip_reason, 0, null::smallint, null, null, 'unknown',
		n.created_at, n.created_at, null::timestamptz, n.origin_id, n.key
	from (
		select n.*, 'skipped' as status from notifications n
		where n.workspace_id = $1 and n.skip_reason is not null and {after} order by n.origin_id, n.key limit {limit}
	) n
	left join lateral (
		select c.flow_id, c.node, c.channel from contents c where c.workspace_id = $1 and c.id = coalesce(n.content_id, n.origin_id) offset 0
	) c on true
	left join lateral (select m.id from campaigns m where m.workspace_id = $1 and m.id = n.origin_id offset 0) m on true
	order by n.origin_id, n.key`

// attemptsOfBatches are the attempts of a page of batches.
const attemptsOfBatches = `
	select {keep}, uuid_send(p.origin_id) || uuid_send(n.key), m.id, n.enrollment_id, n.profile_key,
		n.attempt, n.outcome, n.final, n.basis, n.reason, n.code, n.carrier_id, n.detail, n.at
	from unnest($2::uuid[], $3::uuid[]) p (origin_id, id)
	left join lateral (select m.id from campaigns m where m.workspace_id = $1 and m.id = p.origin_id offset 0) m on true
	cross join lateral (
		select n.key, n.enrollment_id, n.profile_key, a.* from notifications n join attempts a on a.ordinal = n.ordinal
		where n.workspace_id = $1 and n.origin_id = p.origin_id and n.batch_id = p.id and a.workspace_id = $1 and a.batch_id = p.id offset 0
	) n`

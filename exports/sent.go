package exports

// The rows of batches are read in the order of the batches, so that the indexes of their
// tables are read in order too. The subqueries with `offset 0` keep their plan: one batch
// at a time, each table by its key, with or without statistics.

// sentNotifications are the notifications of a page of batches. It reads what the view
// notification_status reads, with one scan of the attempts of a batch.
const sentNotifications = `
	select {keep}, uuid_send(p.origin_id) || uuid_send(n.key), c.campaign_id, c.flow_id, n.enrollment_id, c.node, c.channel,
		n.profile_key, n.address, o.status, o.reason, o.attempts, n.code, n.carrier_id, n.detail, coalesce(d.state, 'unknown'),
		n.created_at, o.ended_at, d.at
	from unnest($2::uuid[], $3::uuid[]) p (origin_id, id)
	cross join lateral (
		select b.status, b.attempt, b.called_through, b.deferred, b.open, b.finished_at, c.flow_id, c.node, c.channel, m.id as campaign_id
		from batches b
		left join lateral (
			select c.flow_id, c.node, c.channel from contents c where c.workspace_id = $1 and c.id = b.content_id offset 0
		) c on true
		left join lateral (select m.id from campaigns m where m.workspace_id = $1 and m.id = p.origin_id offset 0) m on true
		where b.workspace_id = $1 and b.origin_id = p.origin_id and b.id = p.id offset 0
	) c
	cross join lateral (
		select n.origin_id, n.key, n.ordinal, n.profile_key, n.address, n.skip_reason, n.created_at, n.enrollment_id,
			a.attempt, a.outcome, a.final, a.basis, a.reason, a.at, a.code, a.carrier_id, a.detail,
			r.id as part, r.status, r.attempt as part_attempt, r.called_through, r.deferred, r.open, r.finished_at
		from notifications n
		left join (
			select distinct on (a.ordinal) a.* from attempts a where a.workspace_id = $1 and a.batch_id = p.id
			order by a.ordinal desc, a.attempt desc
		) a on a.ordinal = n.ordinal
		left join batches r on (not a.final or a.attempt is null and not n.ordinal = any(c.open))
			and r.workspace_id = $1 and r.origin_id = p.origin_id and r.root_id = p.id and r.id <> r.root_id
			and r.attempt > coalesce(a.attempt, 0) and n.ordinal = any(r.open)
		where n.workspace_id = $1 and n.origin_id = p.origin_id and n.batch_id = p.id offset 0
	) n
	left join lateral (
		select d.state, d.at from deliveries d where d.workspace_id = $1 and d.origin_id = p.origin_id and d.key = n.key offset 0
	) d on true
	cross join lateral notification_outcome(n.skip_reason, n.created_at, n.ordinal, n.attempt, n.outcome, n.final, n.basis, n.reason, n.at,
		coalesce(n.status, c.status), coalesce(n.part_attempt, c.attempt), coalesce(n.called_through, c.called_through),
		coalesce(n.deferred, c.deferred), coalesce(n.open, c.open),
		case when n.part is null then c.finished_at else n.finished_at end) o`

// skippedNotifications are those that were skipped before they had a batch.
const skippedNotifications = `
	select {keep}, uuid_send(n.origin_id) || uuid_send(n.key), m.id, c.flow_id, n.enrollment_id, c.node, c.channel,
		n.profile_key, n.address, o.status, n.skip_reason, 0, o.code, o.carrier_id, o.detail, 'unknown',
		n.created_at, o.ended_at, o.at, n.origin_id, n.key
	from (
		select n.origin_id, n.key, n.content_id, n.enrollment_id, n.profile_key, n.address, n.skip_reason, n.created_at from notifications n
		where n.workspace_id = $1 and n.skip_reason is not null and {after} order by n.origin_id, n.key limit {limit}
	) n
	left join lateral (
		select c.flow_id, c.node, c.channel from contents c where c.workspace_id = $1 and c.id = coalesce(n.content_id, n.origin_id) offset 0
	) c on true
	left join lateral (select m.id from campaigns m where m.workspace_id = $1 and m.id = n.origin_id offset 0) m on true
	cross join lateral (
		select 'skipped' as status, n.created_at as ended_at, null::smallint as code, null as carrier_id, null as detail,
			null::timestamptz as at
	) o
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

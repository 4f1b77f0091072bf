package server

import (
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/pgtest"
)

// fill writes n rows of one workspace, one flow and one campaign into every table that
// grows, so that only other columns distinguish them.
func (p *planned) fill(pool *pgxpool.Pool, n int) {
	for _, sql := range []string{
		`insert into workspaces (id, name) values ($1, 'filled') on conflict do nothing`,
		`insert into enrollments (workspace_id, id, flow_id, version, shard, uniqueness_key, overlap_key, profile_key, status, node,
			waiting_since, resume_at, source, ended_at)
			select $1, id, $1, 1, get_byte(uuid_send(id), 15) & 3, id, case when i % 3 = 0 then id else $1 end, i || 'p' || id,
				case when i % 2 = 0 then 'active' else 'completed' end, 'wait', now(),
				case when i % 2 = 0 then now() + i * interval '1 second' end, 'event', case when i % 2 = 1 then now() end from made`,
		`insert into enrollment_keys (workspace_id, flow_id, uniqueness_key, enrollment_id) select $1, $1, id, id from made`,
		`insert into enrollment_steps (workspace_id, enrollment_id, step, version, node, event) select $1, id, 0, 1, '', 'enrolled' from made`,
		`insert into trigger_events (workspace_id, key, profile_key, name, occurred_at) select $1, id, 'p' || i, 'joined', now() from made`,
		`insert into refusals (workspace_id, flow_id, key, profile_key, reason, source)
			select $1, $1, id, 'p' || i, 'filtered', 'event' from made`,
		`insert into batches (workspace_id, origin_id, id, root_id, provider_id, content_id, size, max_attempts, status, sent, finished_at)
			select $1, $1, id, id, $1, $1, 500, 2, 'done', 500, now() from made where i % 50 = 0`,
		`insert into notifications (workspace_id, origin_id, key, batch_id, ordinal, profile_key, address, payload)
			select $1, $1, id, batch, i % 500, i, 'a@b.example', '{}' from made`,
		`insert into direct_keys (workspace_id, period, key, token, origin_id, request_hash, max_attempts, stored, locked_until, seal_for)
			select $1, (select id from direct_key_periods limit 1), id, id, $1, $1, 2, true, now(), '6 hours' from made`,
		`insert into contents (workspace_id, id, channel, inline, from_name, from_email, reply_to, headers)
			select $1, id, 'email', '{}', '', '', '', '{}' from made`,
		`insert into attempts (workspace_id, batch_id, ordinal, attempt, outcome, final, basis)
			select $1, batch, i % 500, 1, 'accepted', true, 'response' from made`,
		`insert into suppressions (workspace_id, key, cause, id, channel, address) select $1, id, 'manual', id, 'email', i::text from made`,
		`insert into topics (workspace_id, id, name) values ($1, $1, 'filled') on conflict do nothing`,
		`insert into topic_unsubscribes (workspace_id, topic_id, key) select $1, $1, id from made`,
		`insert into batch_log (workspace_id, batch_id, event) select $1, id, 'claimed' from made`,
		`insert into event_queue (workspace_id, id, provider_id, type, occurred_at) select $1, id, $1, 'delivered', now() from made`,
		`insert into tracking_queue (workspace_id, origin_id, key, id, type, occurred_at)
			select $1, $1, id, id, 'clicked', now() - i * interval '1 second' from made`,
		`insert into conversion_queue (workspace_id, received_at, key) select $1, now(), id from made`,
		`insert into settlement_queue (workspace_id, settled_at, batch_id, ordinal) select $1, now(), batch, i % 500 from made`,
		`insert into tracking_events (workspace_id, origin_id, key, id, type, link, occurred_at)
			select $1, $1, id, id, 'clicked', 1, now() from made`,
		`insert into engagements (workspace_id, origin_id, key, content_id, opens, clicks) select $1, $1, id, $1, 1, 1 from made`,
		`insert into outbox (workspace_id, id, endpoint_id, body, enrollment_id, step, status, finished_at)
			select $1, id, $1, '{}', id, 1, case when i % 2 = 0 then 'pending' else 'delivered' end, case when i % 2 = 1 then now() end from made`,
	} {
		sql = strings.Replace(sql, " from made",
			" from (select i, gen_random_uuid() as id, md5(concat($2::int, '/', i / 500))::uuid as batch from generate_series(1, $2::int) i) made",
			1)
		args := []any{p.Workspace}
		if strings.Contains(sql, "$2") {
			args = append(args, n)
		}
		pgtest.Exec(p.T, pool, sql, args...)
	}
}

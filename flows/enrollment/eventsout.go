package enrollment

import (
	"strconv"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma/eventsout"
)

// eventOf has the types of events by the step that causes them. An enrollment starts when
// its entry condition has admitted it.
var eventOf = map[string]string{
	StepChecked: eventsout.EnrollmentStarted, StepCompleted: eventsout.EnrollmentCompleted, StepExited: eventsout.EnrollmentExited,
}

// queueEvents records events about enrollments that start and end, in the transaction that
// writes their steps: one for each type and flow. An enrollment starts and ends once, so
// that the first of an event gives it its id.
func (s *StepRows) queueEvents(batch *pgx.Batch, ws uuid.UUID) {
	var ids []pgtype.UUID
	var types []string
	for i, event := range s.events {
		if name := eventOf[event]; name != "" {
			ids, types = append(ids, s.enrollments[i]), append(types, name)
		}
	}
	if len(ids) == 0 {
		return
	}
	batch.Queue(`
		insert into events_out (workspace_id, id, type, origin_id, keys, count)
		select $1::uuid, md5(type || min(id::text))::uuid, type, flow_id, string_agg(uuid_send(id), ''), count(*)
		from (
			select r.id, r.type, e.flow_id,
				(row_number() over (partition by r.type, e.flow_id order by r.id) - 1) / `+strconv.Itoa(eventsout.MaxItems)+` as part
			from unnest($2::uuid[], $3::text[]) as r (id, type)
			cross join lateral (select e.flow_id from enrollments e where e.workspace_id = $1 and e.id = r.id limit 1) e
			where exists (select from webhook_subscriptions s where s.workspace_id = $1 and s.type = r.type)
		) r
		where exists (select from webhook_subscriptions where workspace_id = $1
			and type in ('`+eventsout.EnrollmentStarted+`', '`+eventsout.EnrollmentCompleted+`', '`+eventsout.EnrollmentExited+`'))
		group by type, flow_id, part`, ws, ids, types)
}

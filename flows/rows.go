package flows

import (
	"encoding/json"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
)

// refusals are rows of that table, turned on their side.
type refusals struct {
	flows, keys, events, rivals         []pgtype.UUID
	profiles, reasons, details, sources []string
	enrolled                            []pgtype.Timestamptz // of those refused at the entry: when, which is when their event came
}

// add keeps a refusal. A direct request that was refused is let go of: told
// again under its id it is a new one, and may be refused for another reason.
func (r *refusals) add(c *candidate) {
	key := refusalOf(c.occurrence.key)
	if c.source == fromDirect && c.sourceID != "" {
		key = lemma.NewID()
	}
	r.flows, r.keys = append(r.flows, wire(c.flow.id)), append(r.keys, wire(key))
	r.profiles, r.reasons, r.details, r.sources = append(r.profiles, c.profile), append(r.reasons, c.reason), append(r.details, c.detail), append(r.sources, c.source)
	event, rival := pgtype.UUID{}, pgtype.UUID{}
	if c.source == fromEvent {
		event = wire(c.occurrence.key)
	}
	if c.rival != nil {
		rival = wire(*c.rival)
	}
	r.events, r.rivals, r.enrolled = append(r.events, event), append(r.rivals, rival), append(r.enrolled, pgtype.Timestamptz{})
}

// addRefused keeps a refusal at the entry like any other, with the enrollment
// that it was.
func (r *refusals) addRefused(t *traveller) {
	r.flows, r.keys = append(r.flows, wire(t.flow)), append(r.keys, wire(lemma.Key("refusal/2", string(t.id[:]))))
	r.profiles, r.reasons, r.sources = append(r.profiles, t.key), append(r.reasons, t.reason), append(r.sources, t.source)
	r.details = append(r.details, t.detail)
	r.events, r.rivals = append(r.events, pgtype.UUID{}), append(r.rivals, wire(t.id))
	r.enrolled = append(r.enrolled, pgtype.Timestamptz{Time: t.enrolledAt, Valid: t.source == fromEvent})
}

// queue writes them; a trigger that is repeated is refused once. The event of an
// enrollment that was refused at the entry is the one of its time, name and id.
func (r *refusals) queue(batch *pgx.Batch, ws uuid.UUID) {
	if len(r.keys) == 0 {
		return
	}
	batch.Queue(`
		insert into refusals (workspace_id, flow_id, key, profile_key, reason, detail, source, event_key, enrollment_id)
		select $1, r.flow_id, r.key, r.profile_key, r.reason, r.detail, r.source, coalesce(r.event_key, e.key), r.enrollment_id
		from unnest($2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[], $8::uuid[], $9::uuid[], $10::timestamptz[])
			as r (flow_id, key, profile_key, reason, detail, source, event_key, enrollment_id, enrolled_at)
		left join lateral (
			select v.key from enrollment_steps s cross join lateral (select s.data::json->'trigger' as trigger) t
			join trigger_events v on v.workspace_id = $1 and v.profile_key = r.profile_key and v.name = t.trigger->>'name' and v.received_at = r.enrolled_at
				and coalesce(v.source_id, '') = t.trigger->>'id'
			where r.enrolled_at is not null and s.workspace_id = $1 and s.enrollment_id = r.enrollment_id and s.step = 0 limit 1
		) e on true
		on conflict (workspace_id, flow_id, key) do nothing`,
		ws, r.flows, r.keys, r.profiles, r.reasons, r.details, r.sources, r.events, r.rivals, r.enrolled)
}

// steps are rows of enrollment_steps, turned on their side.
type steps struct {
	enrollments       []pgtype.UUID
	numbers, versions []int32
	nodes, events     []string
	data              []pgtype.Text
}

func (s *steps) add(enrollment uuid.UUID, step, version int, node, event, data string) {
	s.enrollments = append(s.enrollments, wire(enrollment))
	s.numbers, s.versions = append(s.numbers, int32(step)), append(s.versions, int32(version))
	s.nodes, s.events = append(s.nodes, node), append(s.events, event)
	s.data = append(s.data, pgtype.Text{String: data, Valid: data != ""})
}

// queue writes them, without any on conflict: whoever writes a step has moved
// the enrollment by compare-and-set, so that one that is there already is a
// fault of ours and undoes the transaction.
func (s *steps) queue(batch *pgx.Batch, ws uuid.UUID) {
	if len(s.enrollments) == 0 {
		return
	}
	batch.Queue(`
		insert into enrollment_steps (workspace_id, enrollment_id, step, version, node, event, data)
		select $1, r.* from unnest($2::uuid[], $3::int[], $4::int[], $5::text[], $6::text[], $7::text[]) as r`,
		ws, s.enrollments, s.numbers, s.versions, s.nodes, s.events, s.data)
}

// wire is an id as pgx sends it without a detour.
func wire(id uuid.UUID) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: true} }

// object is data as a step keeps it.
func object(pairs ...any) string {
	m := map[string]any{}
	for i := 0; i+1 < len(pairs); i += 2 {
		m[pairs[i].(string)] = pairs[i+1]
	}
	text, err := json.Marshal(m)
	if err != nil {
		return "" // values come from JSON or are plain
	}
	return string(text)
}

package enrollment

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// RefusalRow is a row of refusals.
type RefusalRow struct {
	FlowID, Key                        uuid.UUID
	ProfileKey, Reason, Detail, Source string
	EventKey                           *uuid.UUID // of the trigger
	EnrollmentID                       *uuid.UUID // the conflicting one, or the one that was refused at the entry
	EnrolledAt                         *time.Time // refused at the entry, source event: when it enrolled, which is the time of its event
	At                                 *time.Time // nil: now
}

// RefusalRows are rows of refusals, column by column.
type RefusalRows struct {
	flows, keys, events, enrollments    []pgtype.UUID
	profiles, reasons, details, sources []string
	enrolled, times                     []pgtype.Timestamptz
}

// Add appends a row.
func (r *RefusalRows) Add(one RefusalRow) {
	r.flows, r.keys = append(r.flows, PgUUID(one.FlowID)), append(r.keys, PgUUID(one.Key))
	r.profiles, r.reasons, r.details, r.sources = append(r.profiles, one.ProfileKey), append(r.reasons, one.Reason), append(r.details,
		one.Detail), append(r.sources, one.Source)
	r.events, r.enrollments = append(r.events, optional(one.EventKey)), append(r.enrollments, optional(one.EnrollmentID))
	r.enrolled, r.times = append(r.enrolled, optionalTime(one.EnrolledAt)), append(r.times, optionalTime(one.At))
}

func optionalTime(t *time.Time) pgtype.Timestamptz {
	if t == nil {
		return pgtype.Timestamptz{}
	}
	return pgtype.Timestamptz{Time: *t, Valid: true}
}

func optional(id *uuid.UUID) pgtype.UUID {
	if id == nil {
		return pgtype.UUID{}
	}
	return PgUUID(*id)
}

// Queue inserts them; a repeated trigger is refused once. The event of an enrollment that
// was refused at the entry is the one with its time, name and id. It is found by "name and time
// as a row" of plans.go.
func (r *RefusalRows) Queue(batch *pgx.Batch, ws uuid.UUID) {
	if len(r.keys) == 0 {
		return
	}
	batch.Queue(`
		insert into refusals (workspace_id, flow_id, key, profile_key, reason, detail, source, event_key, enrollment_id, at)
		select $1, r.flow_id, r.key, r.profile_key, r.reason, r.detail, r.source, coalesce(r.event_key, e.key), r.enrollment_id,
			coalesce(r.at, now())
		from unnest($2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[], $8::uuid[], $9::uuid[], $10::timestamptz[],
			$11::timestamptz[]) as r (flow_id, key, profile_key, reason, detail, source, event_key, enrollment_id, enrolled_at, at)
		left join lateral (
			select v.key from enrollment_steps s cross join lateral (select s.data::json->'trigger' as trigger) t
			join trigger_events v on v.workspace_id = $1 and v.profile_key = r.profile_key
				and (v.name, v.received_at) between (t.trigger->>'name', r.enrolled_at) and (t.trigger->>'name', r.enrolled_at)
				and coalesce(v.source_id, '') = t.trigger->>'source_id'
			where r.enrolled_at is not null and s.workspace_id = $1 and s.enrollment_id = r.enrollment_id and s.step = 0 limit 1
		) e on true
		on conflict (workspace_id, flow_id, key) do nothing`,
		ws, r.flows, r.keys, r.profiles, r.reasons, r.details, r.sources, r.events, r.enrollments, r.enrolled, OrNone(r.times))
}

// StepRows are rows of enrollment_steps, column by column.
type StepRows struct {
	enrollments       []pgtype.UUID
	numbers, versions []int32
	nodes, events     []string
	data              []pgtype.Text
}

// Add appends a row; empty data is null.
func (s *StepRows) Add(enrollment uuid.UUID, step, version int, node, event, data string) {
	s.enrollments = append(s.enrollments, PgUUID(enrollment))
	s.numbers, s.versions = append(s.numbers, int32(step)), append(s.versions, int32(version))
	s.nodes, s.events = append(s.nodes, node), append(s.events, event)
	s.data = append(s.data, pgtype.Text{String: data, Valid: data != ""})
}

// Queue inserts them without on conflict: a step follows a compare-and-set that moved the
// enrollment, so a step that exists is a defect and rolls back.
func (s *StepRows) Queue(batch *pgx.Batch, ws uuid.UUID) {
	if len(s.enrollments) == 0 {
		return
	}
	batch.Queue(`
		insert into enrollment_steps (workspace_id, enrollment_id, step, version, node, event, data)
		select $1, r.* from unnest($2::uuid[], $3::int[], $4::int[], $5::text[], $6::text[], $7::text[]) as r`,
		ws, s.enrollments, s.numbers, s.versions, s.nodes, s.events, s.data)
	s.queueEvents(batch, ws)
}

// CopyFrom is the number of steps from which COPY costs less than an insert, which needs
// no extra round trip.
const CopyFrom = 30

var copiedColumns = []string{"workspace_id", "enrollment_id", "step", "version", "node", "event", "data"}

// Write is Queue, but with COPY for many steps, which costs about half.
func (s *StepRows) Write(ctx context.Context, tx pgx.Tx, batch *pgx.Batch, ws uuid.UUID) error {
	if len(s.enrollments) < CopyFrom {
		s.Queue(batch, ws)
		return nil
	}
	s.queueEvents(batch, ws)
	row := make([]any, len(copiedColumns))
	row[0] = PgUUID(ws)
	rows := pgx.CopyFromSlice(len(s.enrollments), func(i int) ([]any, error) {
		row[1], row[2], row[3], row[4], row[5], row[6] = s.enrollments[i], s.numbers[i], s.versions[i], s.nodes[i], s.events[i], s.data[i]
		return row, nil
	})
	_, err := tx.CopyFrom(ctx, pgx.Identifier{"enrollment_steps"}, copiedColumns, rows)
	return err
}

// StepData is data in the form that steps store.
func StepData(pairs ...any) string {
	m := map[string]any{}
	for i := 0; i+1 < len(pairs); i += 2 {
		m[pairs[i].(string)] = pairs[i+1]
	}
	text, err := json.Marshal(m)
	if err != nil {
		return "" // values come from JSON or are scalars
	}
	return string(text)
}

// NodeCounts counts events by node.
type NodeCounts map[NodeEvent]int64

// CountSkipped counts the notifications that a node wrote as skipped, by reason. It is no
// event of a step: a step writes one for each address.
const CountSkipped = "messages_skipped"

// NodeEvent is an event on a node, and the next node where there are several paths. Of the end of an
// enrollment, Next is the reason: the counts of all nodes have how many ended, and why.
type NodeEvent struct {
	Version int
	Node    string
	Event   string
	Next    string
}

// Queue adds them to the counts, in the order of their keys. Only the holder of the
// shard's lease updates these rows, unless its lease expired.
func (p NodeCounts) Queue(batch *pgx.Batch, ws, flow uuid.UUID, shard int16) {
	keys := slices.SortedFunc(maps.Keys(p), func(a, b NodeEvent) int {
		return cmp.Or(cmp.Compare(a.Version, b.Version), strings.Compare(a.Node, b.Node), strings.Compare(a.Event, b.Event),
			strings.Compare(a.Next, b.Next))
	})
	if len(keys) == 0 {
		return
	}
	versions, nodes, events, paths, counts := make([]int32, len(keys)), make([]string, len(keys)), make([]string,
		len(keys)), make([]string, len(keys)), make([]int64, len(keys))
	for i, k := range keys {
		versions[i], nodes[i], events[i], paths[i], counts[i] = int32(k.Version), k.Node, k.Event, k.Next, p[k]
	}
	batch.Queue(`
		insert into flow_node_counts (workspace_id, flow_id, shard, version, node, event, next, processed)
		select $1, $2, $3, r.* from unnest($4::int[], $5::text[], $6::text[], $7::text[], $8::bigint[]) as r
		on conflict (workspace_id, flow_id, version, node, event, next, shard) do update
			set processed = flow_node_counts.processed + excluded.processed`,
		ws, flow, shard, versions, nodes, events, paths, counts)
}

// OrNone turns a column of zero values into an empty one, which unnest fills with nulls:
// each value that is sent costs time.
func OrNone[T comparable](column []T) []T {
	var zero T
	if slices.ContainsFunc(column, func(v T) bool { return v != zero }) {
		return column
	}
	return []T{}
}

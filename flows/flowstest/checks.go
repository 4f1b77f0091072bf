package flowstest

import (
	"context"
	"errors"
	"strings"

	"github.com/google/uuid"

	"lemma"
	"lemma/flows"
	"lemma/flows/enrollment"
	"lemma/flows/query"
	"lemma/page"
	"lemma/pgtest"
)

// Enrollment is the only enrollment of a profile.
func (b *Fixture) Enrollment(flow uuid.UUID, profile string) query.Enrollment {
	b.T.Helper()
	all := b.Enrollments(flow, profile)
	if len(all) != 1 {
		b.T.Fatalf("%s has %d enrollments", profile, len(all))
	}
	return all[0]
}

// Enrollments are all enrollments of a profile in a flow.
func (b *Fixture) Enrollments(flow uuid.UUID, profile string) []query.Enrollment {
	b.T.Helper()
	all, _, err := b.ListEnrollments(context.Background(), b.Workspace, query.EnrollmentFilter{FlowID: &flow, ProfileKey: profile},
		page.Query{Limit: 200})
	b.Must(err)
	return all
}

// Trace is an enrollment's history in short: event@node.
func (b *Fixture) Trace(id uuid.UUID) string {
	b.T.Helper()
	all := pgtest.Column[string](b.T, b.Pool, `select event || '@' || node from enrollment_steps where workspace_id = $1
		and enrollment_id = $2 order by step`, b.Workspace, id)
	return strings.Join(all, " ")
}

// WantTrace checks an enrollment's history in short.
func (b *Fixture) WantTrace(id uuid.UUID, want string) {
	b.T.Helper()
	if got := b.Trace(id); got != want {
		b.T.Errorf("got  %s\nwant %s", got, want)
	}
}

// Notifications counts those of the workspace.
func (b *Fixture) Notifications() int {
	b.T.Helper()
	return b.Count(`select count(*) from notifications where workspace_id = $1`, b.Workspace)
}

// Flow reads a flow.
func (b *Fixture) Flow(id uuid.UUID) flows.Flow {
	b.T.Helper()
	f, err := b.Get(context.Background(), b.Workspace, id)
	b.Must(err)
	return f
}

// Wants fails the test unless err is of a kind, and returns it.
func (b *Fixture) Wants(kind lemma.Kind, err error) *lemma.Error {
	b.T.Helper()
	var e *lemma.Error
	if !errors.As(err, &e) || e.Kind != kind {
		b.T.Fatalf("%v is not %s", err, kind)
	}
	return e
}

// Pointers are the pointers and codes of an error's fields.
func Pointers(e *lemma.Error) string {
	var all []string
	for _, f := range e.Fields {
		all = append(all, f.Pointer+" "+f.Code)
	}
	return strings.Join(all, ", ")
}

// Second is the error of a call.
func Second[T any](_ T, err error) error { return err }

// ThirdOf is the error of a call with three results.
func ThirdOf[T any](_ T, _ string, err error) error { return err }

// Snapshot is all that a publish must not change, as one text.
func (b *Fixture) Snapshot(flow uuid.UUID) string {
	b.T.Helper()
	return pgtest.One[string](b.T, b.Pool, `
		select coalesce(string_agg(e::text, E'\n' order by id), '') from enrollments e where workspace_id = $1 and flow_id = $2`, b.Workspace,
		flow)
}

// RowCounts counts the rows of each table.
func (b *Fixture) RowCounts() map[string]int {
	b.T.Helper()
	tables := pgtest.Column[string](b.T, b.Pool, `select relname from pg_class where relnamespace = 'public'::regnamespace and relkind in
		('r', 'p') and not relispartition`)
	counts := map[string]int{}
	for _, table := range tables {
		counts[table] = b.Count(`select count(*) from ` + table)
	}
	return counts
}

// LastStepOn is the last step at a node.
func (b *Fixture) LastStepOn(id uuid.UUID, node string) (found query.Step) {
	b.T.Helper()
	_, steps, _, err := b.Steps(context.Background(), b.Workspace, id, -1)
	b.Must(err)
	for _, s := range steps {
		if s.Node == node && s.Event != enrollment.StepMoved {
			found = s
		}
	}
	return found
}

// wantEvents checks that events have the enrollments that have started and ended, each
// once, by the steps of the workspace.
func (b *Fixture) wantEvents() {
	b.T.Helper()
	b.WantCount(0, `
		with steps as (
			select case event when 'checked' then 'enrollment.started' else 'enrollment.' || event end as type, enrollment_id, count(*) as n
			from enrollment_steps where workspace_id = $1 and event in ('checked', 'completed', 'exited') group by 1, 2
		), events as (
			select e.type, substr(e.keys, at, 16) as key, count(*) as n from events_out e, generate_series(1, length(e.keys), 16) as at
			where e.workspace_id = $1 and e.type like 'enrollment.%' group by 1, 2
		)
		select count(*) from steps s full join events e on e.type = s.type and e.key = uuid_send(s.enrollment_id)
		where s.n is distinct from 1 or e.n is distinct from 1`, b.Workspace)
}

// wantEnded checks that the counts by node have the enrollments that have ended, by version and reason.
func (b *Fixture) wantEnded() {
	b.T.Helper()
	b.WantCount(0, `
		with ended as (
			select flow_id, version, status, coalesce(exit_reason, '') as reason, count(*) as n
			from enrollments where workspace_id = $1 and status <> 'active' group by 1, 2, 3, 4
		), counted as (
			select flow_id, version, event, next, sum(processed) as n from flow_node_counts
			where workspace_id = $1 and event in ('completed', 'exited', 'refused') group by 1, 2, 3, 4
		)
		select count(*) from ended e full join counted c on c.flow_id = e.flow_id and c.version = e.version and c.event = e.status
			and c.next = e.reason
		where e.n is distinct from c.n`, b.Workspace)
}

// CountEnded counts enrollments that a test has written as ended, in a flow without others.
func (b *Fixture) CountEnded(flow uuid.UUID) {
	b.T.Helper()
	b.Exec(`
		insert into flow_node_counts (workspace_id, flow_id, shard, version, node, event, next, processed)
		select workspace_id, flow_id, 0, version, node, status, coalesce(exit_reason, ''), count(*) from enrollments
		where workspace_id = $1 and flow_id = $2 and status <> 'active' group by 1, 2, 4, 5, 6, 7`, b.Workspace, flow)
}

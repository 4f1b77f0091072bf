package flows_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/flows"
	"lemma/flows/enrollment"
	"lemma/flows/flowstest"
	"lemma/pgtest"
)

// The notifications of an enrollment whose steps were dropped by their retention are erased
// too: those of a node that only an earlier version has, and each of several devices.
func TestEraseWithoutSteps(t *testing.T) {
	b := setup(t, 2)
	flow := b.Live(flowstest.Welcome)
	b.RecordEvent("c1", "signed_up")
	b.RecordEvent("c2", "signed_up")
	b.Settle()
	b.Exec(`update batches set status = 'done', sent = size, finished_at = now()`)
	e := b.Enrollment(flow, "c1")
	node := pgtest.One[string](t, b.Pool, `select node from enrollment_steps where enrollment_id = $1 and event = 'sent'`, e.ID)
	b.Exec(`insert into notifications (workspace_id, origin_id, key, profile_key, address, skip_reason)
		select $1, $2, k, 'c1', 'another device', 'invalid_address' from unnest($3::uuid[]) k`, b.Workspace, enrollment.OriginOf(flow, e.ID),
		[]uuid.UUID{enrollment.MessageKey(e.ID, node, 1), enrollment.MessageKey(e.ID, node, 2)})
	b.Exec(`delete from enrollment_steps`)
	b.Exec(`delete from events_out`) // which have one item for each step
	if got := b.erase("c1"); got.Notifications != 3 || b.Count(`select count(*) from notifications where profile_key = 'c1'`) != 0 {
		t.Errorf("%+v", got)
	}
	b.WantCount(1, `select count(*) from notifications where profile_key = 'c2' and payload is not null`)
	if again := b.erase("c1"); again.Notifications != 0 || again.InFlight != 0 {
		t.Errorf("%+v", again)
	}
}

// asked counts what is read to find the notifications of enrollments without steps.
type asked struct{ keys, nodes, statements int }

func (a *asked) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.Contains(q.SQL, "unnest(nodes)") {
		a.nodes++
	}
	for _, arg := range q.Args {
		if keys, is := arg.([]pgtype.UUID); is && strings.Contains(q.SQL, "notifications") {
			a.keys = max(a.keys, len(keys))
			a.statements++
		}
	}
	return ctx
}

func (a *asked) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// many adds versions of a flow with 200 nodes each, which no other version has, and ended
// enrollments of c1 whose steps were dropped. It returns their ids.
func (b *bundle) many(flow uuid.UUID, versions, enrollments int) []uuid.UUID {
	b.T.Helper()
	b.Exec(`
		insert into flow_versions (workspace_id, flow_id, version, status, definition, request, published_at, nodes)
		select $1, $2, v, 'published', '{}', gen_random_uuid(), now(), array(select 'n' || v || '_' || i from generate_series(1, 200) i)
		from generate_series(2, 1 + $3::int) v`, b.Workspace, flow, versions)
	var ids []uuid.UUID
	for range enrollments {
		ids = append(ids, lemma.NewID())
	}
	b.Exec(`
		insert into enrollments (workspace_id, id, flow_id, version, shard, uniqueness_key, overlap_key, profile_key, status, node, source,
			ended_at, exit_reason)
		select $1, id, $2, 1, 0, gen_random_uuid(), gen_random_uuid(), 'c1', 'exited', 'end', 'event', now(), 'manual'
		from unnest($3::uuid[]) id`, b.Workspace, flow, ids)
	b.CountEnded(flow)
	return ids
}

// A flow may have had many nodes. Those of a flow are read once for a page, the notifications of
// one enrollment are searched by a bounded number of keys at a time, and all are found.
func TestEraseWithoutStepsAsksInParts(t *testing.T) {
	b := setup(t, 1)
	const versions, enrollments = 30, 4 // 6,000 nodes
	for range 2 {
		flow := b.Live(flowstest.Welcome)
		for _, id := range b.many(flow, versions, enrollments) {
			var keys []uuid.UUID
			for v := range versions {
				node := fmt.Sprintf("n%d_%d", 2+v, 1+v)
				keys = append(keys, enrollment.MessageKey(id, node, 0), enrollment.MessageKey(id, node, 1))
			}
			b.Exec(`insert into notifications (workspace_id, origin_id, key, profile_key, address, skip_reason)
				select $1, $2, k, 'c1', 'c1@shop.example', 'invalid_address' from unnest($3::uuid[]) k`, b.Workspace, enrollment.OriginOf(flow, id),
				keys)
		}
	}
	var seen asked
	deps := b.Deps
	deps.Pool = b.Connect(func(c *pgxpool.Config) { c.ConnConfig.Tracer = &seen })
	p := flowstest.NewProcess(deps, b.Config)
	p.SetTraceTime(time.Minute)
	got, err := p.Erase(context.Background(), b.Workspace, "c1")
	b.Must(err)
	if d := cmp.Diff(flows.Erased{Enrollments: 2 * enrollments, Notifications: 2 * enrollments * versions * 2}, got); d != "" {
		t.Error(d)
	}
	if seen.keys > 5_000 || seen.nodes != 2 || seen.statements < 2*enrollments*2 {
		t.Errorf("%+v", seen)
	}
	if left := b.mentions("c1@shop.example"); len(left) > 0 {
		t.Error(left)
	}
}

// A page has the enrollments whose notifications it finds in time, at least one. The others are
// not changed until a later page erases them, and all notifications are found in the end.
func TestEraseWithoutStepsByPages(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(flowstest.Welcome)
	ids := b.many(flow, 2, 3)
	for _, id := range ids {
		b.Exec(`insert into notifications (workspace_id, origin_id, key, profile_key, address, skip_reason)
			values ($1, $2, $3, 'c1', 'c1@shop.example', 'invalid_address')`, b.Workspace, enrollment.OriginOf(flow, id),
			enrollment.MessageKey(id, "n3_200", 0))
	}
	b.RecordEvent("c1", "signed_up") // active, with steps: it is first
	b.Settle()
	b.Exec(`update batches set status = 'done', sent = size, finished_at = now()`)
	b.SetEraseTime(0)
	b.SetTraceTime(0)
	want := flows.Erased{Enrollments: 1, Exited: 1, Events: 1, Notifications: 1, More: true}
	for left := len(ids); left >= 0; left-- {
		if d := cmp.Diff(want, b.erase("c1")); d != "" {
			t.Fatalf("%d are left: %s", left, d)
		}
		b.WantCount(left, `select count(*) from enrollments where profile_key = 'c1' and exit_reason = 'manual'`)
		b.WantCount(left, `select count(*) from notifications where profile_key = 'c1' and address = 'c1@shop.example'`)
		want = flows.Erased{Enrollments: 1, Notifications: 1, More: left > 1}
	}
	if left := b.mentions("c1@shop.example"); len(left) > 0 {
		t.Error(left)
	}
}

// A page ends behind the enrollment whose notifications reach its limit.
func TestEraseManyNotifications(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(flowstest.Welcome)
	for _, id := range b.many(flow, 0, 3) {
		b.Exec(`insert into enrollment_steps (workspace_id, enrollment_id, step, version, node, event, data)
			values ($1, $2, 0, 1, 'hello', 'sent', json_build_object($3::text, $4::int, 'of', 'c1'))`, b.Workspace, id, enrollment.StepMessages,
			flows.EraseMessages/2)
	}
	b.SetEraseTime(0)
	left := 3
	for _, want := range []flows.Erased{{Enrollments: 2, More: true}, {Enrollments: 1}} {
		if d := cmp.Diff(want, b.erase("c1")); d != "" {
			t.Error(d)
		}
		left -= int(want.Enrollments)
		b.WantCount(left, `select count(*) from enrollment_steps where data like '%c1%'`) // those of the next page are not changed
	}
}

package webhooks

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma/pgtest"
)

// wantReady returns the endpoints of the next claim.
func (b bundle) wantReady(want int) []readyEndpoint {
	b.T.Helper()
	all, err := b.ready.next(b.T.Context(), b.Pool)
	b.Must(err)
	if len(all) != want {
		b.T.Errorf("%d endpoints are ready, want %d", len(all), want)
	}
	return all
}

// An endpoint whose messages all wait for a further call is not visited before one is due.
func TestEndpointsThatWaitAreNotVisited(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.written()
	b.wantReady(1)
	b.receiver.status(503)
	b.run(b.Webhooks, 1)
	b.wantReady(0)
	b.WantCount(1, `select count(*) from outbox where waits`)
	b.due()
	b.wantReady(1)
	b.WantCount(0, `select count(*) from outbox where waits`)
	taken, err := b.claim(t.Context())
	b.Must(err)
	b.Must(b.putBack(taken[0], result{status: 503, reason: ReasonStatus}, time.Hour))
	b.wantReady(0)
}

// A claim reads a bounded number of endpoints, and later ones the next of them.
func TestEndpointsAreVisitedInTurn(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.Exec(`insert into outbox (workspace_id, id, endpoint_id, body) select $1, gen_random_uuid(), gen_random_uuid(), '{}'
		from generate_series(1, $2::int)`, b.Workspace, mostReady+3)
	seen := map[uuid.UUID]bool{}
	for _, want := range []int{mostReady, 3, mostReady} {
		for _, e := range b.wantReady(want) {
			seen[e.endpoint] = true
		}
	}
	if len(seen) != mostReady+3 {
		t.Errorf("%d endpoints were visited", len(seen))
	}
	b.Exec(`update outbox set waits = true, due_at = now() + interval '1 hour' where endpoint_id > $1`, b.ready.after.endpoint)
	b.wantReady(mostReady) // after the last one comes the first
}

// The waits that were over first end first, a bounded number at a time.
func TestWaitsEndInOrder(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.Exec(`insert into outbox (workspace_id, id, endpoint_id, body, waits, due_at)
		select $1, gen_random_uuid(), $1, '{}', true, now() - i * interval '1 second' from generate_series(1, $2::int) i`,
		b.Workspace, mostWoken+1)
	b.wantReady(1)
	b.WantCount(1, `select count(*) from outbox where waits`)
	b.WantCount(1, `select count(*) from outbox where waits and due_at > now() - interval '1 minute'`)
	b.wantReady(1)
	b.WantCount(0, `select count(*) from outbox where waits`)
}

// While one workspace has more messages whose waits are over than claims end, those of
// others that were over later end, too: each endpoint has its turn.
func TestManyWaitsDelayNoOtherWorkspace(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	wait := func(ws uuid.UUID, endpoints, messages int, ago string) {
		b.Exec(`insert into outbox (workspace_id, id, endpoint_id, body, waits, due_at)
			select $1::uuid, gen_random_uuid(), md5(i % $2 || ($1::uuid)::text)::uuid, '{}', true, now() - $4::interval
			from generate_series(1, $3::int) i`,
			ws, endpoints, messages, ago)
	}
	wait(b.Workspace, mostInTurn, 6*mostWoken, "2 hours")
	var others []uuid.UUID
	for range 3 {
		others = append(others, pgtest.Workspace(t, b.Pool))
		wait(others[len(others)-1], 1, 1, "1 hour")
	}
	for range 3 { // the first finds that there are many, and two turns visit all endpoints
		_, err := b.ready.next(t.Context(), b.Pool)
		b.Must(err)
	}
	b.WantCount(0, `select count(*) from outbox where waits and workspace_id = any($1)`, others)
	if n := b.Count(`select count(*) from outbox where waits`); n < 6*mostWoken-3*mostWoken-2*mostInTurn*mostOfEach {
		t.Errorf("only %d wait", n)
	}
	for range 4 {
		_, err := b.ready.next(t.Context(), b.Pool)
		b.Must(err)
	}
	b.WantCount(0, `select count(*) from outbox where waits`)
	if b.wantReady(mostInTurn + len(others)); b.ready.crowded {
		t.Error("no more are due")
	}
}

// A message that another transaction holds keeps no claim waiting, also when waits end in turn.
func TestALockedMessageDelaysNoClaim(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.Exec(`insert into outbox (workspace_id, id, endpoint_id, body, waits, due_at)
		select $1, gen_random_uuid(), $1, '{}', true, now() - interval '1 hour' from generate_series(1, 2) i`, b.Workspace)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tx, err := b.Pool.Begin(ctx)
	b.Must(err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(ctx, `select from outbox where id = (select min(id::text)::uuid from outbox) for update`)
	b.Must(err)
	b.ready.crowded = true
	_, err = b.ready.next(ctx, b.Pool)
	b.Must(err)
	b.WantCount(1, `select count(*) from outbox where waits`)
}

// A workspace whose calls are all of messages that no other message follows has its calls.
func TestCallsOfAWorkspaceCountWithoutFurtherMessages(t *testing.T) {
	t.Parallel()
	b := setup(t, func(o *Options) { o.Workers, o.PerWorkspace, o.PerEndpoint = 3, 3, 2 })
	for i := range 2 {
		e, _ := b.endpoint(fmt.Sprint("/one", i))
		b.write(b.message(e))
	}
	taken, err := b.claim(t.Context())
	b.Must(err)
	if len(taken) != 2 {
		t.Fatalf("%d messages were claimed", len(taken))
	}
	more, _ := b.endpoint("/more")
	other := b
	other.Workspace = pgtest.Workspace(t, b.Pool)
	few, _ := other.endpoint("/few")
	b.write(b.message(more))
	other.write(other.message(few))
	for range 20 { // equal ones are taken in random order
		taken, err = b.claim(t.Context())
		b.Must(err)
		if len(taken) != 1 || taken[0].EndpointID != few.ID {
			t.Fatalf("claimed: %+v", taken)
		}
		b.Must(b.giveBack(t.Context(), taken))
		b.limiter.release(taken[0].WorkspaceID, taken[0].EndpointID)
	}
}

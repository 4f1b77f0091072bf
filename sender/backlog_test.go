package sender

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/notifications"
)

// While thousands of batches wait for a provider, their jobs find nothing to claim. Each of these
// costs little: the statements of a claim are planned once for a connection.
func TestAClaimOfNothingIsNotPlannedAgain(t *testing.T) {
	b := setup(t)
	s := b.sender()
	s.pool = b.Connect(func(c *pgxpool.Config) { c.MaxConns = 1 })
	refs := b.insertDirect(1)
	b.Exec(`update batches set due_at = now() + interval '1 hour'`)
	claim := func() {
		if c, err := s.Claim(bg, refs[0]); c != nil || err != nil {
			t.Fatalf("%+v, %v", c, err)
		}
	}
	planned := func() (at time.Time) {
		b.Must(s.pool.QueryRow(bg, `select min(prepare_time) from pg_prepared_statements
			where statement in ($1, $2, $3) having count(*) = 3`, claimBatch, readRows, countCrashes).Scan(&at))
		return at
	}
	claim()
	first := planned()
	claim()
	claim()
	if again := planned(); !again.Equal(first) {
		t.Errorf("planned at %s and at %s", first, again)
	}
}

// A sweep is planned by how many batches and jobs there are at that time, which may be many more than
// before.
func TestEachSweepIsPlanned(t *testing.T) {
	b := setup(t)
	s := b.sender()
	s.pool = b.Connect(func(c *pgxpool.Config) { c.MaxConns = 1 })
	_, err := s.Sweep(bg)
	b.Must(err)
	var kept int
	b.Must(s.pool.QueryRow(bg, `select count(*) from pg_prepared_statements where statement like '%from river_job%'
		and statement not like '%pg_prepared_statements%'`).Scan(&kept))
	if kept != 0 {
		t.Errorf("%d plans are kept", kept)
	}
}

// Of several workers that choose the same batch of another workspace one works it. The workspace has
// others, which need not wait for the next read of workspaces.
func TestACollisionLeavesOutNoWorkspace(t *testing.T) {
	a := setup(t)
	b := a.tenant()
	s, faster := a.sender(), a.sender()
	own, others := a.insertDirect(1), b.insertDirect(3)
	s.directFairness.at, s.directFairness.workspaces = time.Now().Add(time.Hour), []uuid.UUID{b.Workspace} // read
	var chosen int
	s.Hook = func(_ context.Context, at string, ref notifications.Ref) {
		if at == "chosen" {
			chosen++
			a.workOne(faster, ref)
		}
	}
	for range 100 { // the own workspace is chosen as often
		_ = s.serveAnother(bg, own[0])
	}
	if chosen != len(others) {
		t.Errorf("%d of %d are chosen", chosen, len(others))
	}
	if len(s.directFairness.workspaces) != 0 { // nothing is due
		t.Error("the workspace is not left out")
	}
}

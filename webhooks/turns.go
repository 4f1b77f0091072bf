package webhooks

import (
	"context"
	"sync"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// publishWorkspaces is how many workspaces have events in one transaction, at most.
const publishWorkspaces = 20

// turns decide whose events are published next, so that no workspace waits for the events
// of another, and how many: half as many after a failure, so that an event that fails is
// soon alone, and others are published.
type turns struct {
	mu    sync.Mutex
	after uuid.UUID // the workspace before the next turn
	fewer int       // halvings of publishMost
}

// turn is a chunk of events to publish.
type turn struct {
	workspaces []uuid.UUID
	most       int // events
	begin      uuid.UUID
	last       bool // no further workspace had events
}

// perWorkspace is how many events of each workspace are published.
func (n turn) perWorkspace() int { return max(1, n.most/len(n.workspaces)) }

// isFull reports whether events may wait that were not found: of other workspaces, or of
// one that had all of its events in the turn.
func (n turn) isFull(found []*waiting) bool {
	of := map[uuid.UUID]int{}
	for _, e := range found {
		of[e.WorkspaceID]++
	}
	for _, events := range of {
		if events >= n.perWorkspace() {
			return true
		}
	}
	return !n.last
}

// next reads the workspaces of the next turn, by one index search each. After the last one
// comes the first.
func (t *turns) next(ctx context.Context, pool *pgxpool.Pool) (turn, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := turn{most: max(1, publishMost>>t.fewer), begin: t.after}
	most := min(n.most, publishWorkspaces)
	for {
		rows, err := pool.Query(ctx, `
			with recursive w as (
				(select workspace_id, 1 as n from events_out
				where published_at is null and workspace_id > $1 order by workspace_id limit 1)
				union all
				select e.workspace_id, w.n + 1 from w cross join lateral (
					select workspace_id from events_out
					where published_at is null and workspace_id > w.workspace_id order by workspace_id limit 1) e
				where w.n < $2
			)
			select workspace_id from w`, t.after, most)
		if err != nil {
			return n, err
		}
		if n.workspaces, err = pgx.CollectRows(rows, pgx.RowTo[uuid.UUID]); err != nil {
			return n, err
		}
		n.last = len(n.workspaces) < most
		again := len(n.workspaces) == 0 && t.after != uuid.Nil
		t.after = uuid.Nil
		if len(n.workspaces) == most {
			t.after = n.workspaces[most-1]
		}
		if !again {
			return n, nil
		}
	}
}

// ended records how a turn ended. One that failed is repeated, with fewer events.
func (t *turns) ended(n turn, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil {
		t.fewer = max(0, t.fewer-1)
		return
	}
	t.after = n.begin
	if n.most > 1 {
		t.fewer++
	}
}

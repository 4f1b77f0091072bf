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

// rotation decides whose events are published next, so that no workspace waits for the events
// of another, and how many: half as many after a failure, so that an event that fails is
// soon alone, and others are published.
type rotation struct {
	mu    sync.Mutex
	after uuid.UUID // the workspace before the next chunk
	fewer int       // halvings of publishMost
}

// chunk is events to publish.
type chunk struct {
	workspaces []uuid.UUID
	most       int // events
	begin      uuid.UUID
	last       bool // no further workspace had events
}

// perWorkspace is how many events of each workspace are published.
func (n chunk) perWorkspace() int { return max(1, n.most/len(n.workspaces)) }

// isFull reports whether events may wait that were not found: of other workspaces, or of
// one that had all of its events in the chunk.
func (n chunk) isFull(found []*waiting) bool {
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

// next reads the workspaces of the next chunk, by one index search each. After the last one
// comes the first.
func (r *rotation) next(ctx context.Context, pool *pgxpool.Pool) (chunk, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := chunk{most: max(1, publishMost>>r.fewer), begin: r.after}
	most := min(n.most, publishWorkspaces)
	for {
		rows, _ := pool.Query(ctx, `
			with recursive w as (
				(select workspace_id, 1 as n from events_out
				where published_at is null and workspace_id > $1 order by workspace_id limit 1)
				union all
				select e.workspace_id, w.n + 1 from w cross join lateral (
					select workspace_id from events_out
					where published_at is null and workspace_id > w.workspace_id order by workspace_id limit 1) e
				where w.n < $2
			)
			select workspace_id from w`, r.after, most)
		var err error
		if n.workspaces, err = pgx.CollectRows(rows, pgx.RowTo[uuid.UUID]); err != nil {
			return n, err
		}
		n.last = len(n.workspaces) < most
		again := len(n.workspaces) == 0 && r.after != uuid.Nil
		r.after = uuid.Nil
		if len(n.workspaces) == most {
			r.after = n.workspaces[most-1]
		}
		if !again {
			return n, nil
		}
	}
}

// ended records how a chunk ended. One that failed is repeated, with fewer events.
func (r *rotation) ended(n chunk, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.fewer = max(0, r.fewer-1)
		return
	}
	r.after = n.begin
	if n.most > 1 {
		r.fewer++
	}
}

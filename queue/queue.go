// Package queue works tables whose rows wait for a worker and belong to workspaces. It promises:
//
//   - A workspace is worked on by one goroutine of a process. Any number of processes may
//     work, if they skip rows that are locked.
//   - A workspace that fails or is slow does not stop the others: a transaction has a limit of
//     time, and after a slow one the workspace takes fewer rows. So several goroutines of a
//     process should call Each.
//   - A row that fails by itself stops none of its workspace, and is tried again.
//
// The rows, and what is done with them in which transaction, are those of the caller.
package queue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/loop"
	"lemma/pgerr"
)

// Queue is a table, as a process works it.
type Queue struct {
	Pause time.Duration // until a workspace that failed is tried again; 5 s
	Limit time.Duration // of the work on one part; 10 s

	pool  *pgxpool.Pool
	table string
	chunk int

	mu    sync.Mutex
	of    map[uuid.UUID]turn
	ended map[uuid.UUID]time.Time // lately: when the last work on a workspace ended

	cleaned time.Time // when the old ones were deleted
}

// New returns the Queue of a table with a workspace_id, by which it has an index. A
// transaction takes at most chunk rows.
func New(pool *pgxpool.Pool, table string, chunk int) *Queue {
	return &Queue{Pause: 5 * time.Second, Limit: 10 * time.Second, pool: pool, table: table, chunk: chunk, of: map[uuid.UUID]turn{},
		ended: map[uuid.UUID]time.Time{}}
}

// endedFor is longer than any list of workspaces is worked on.
const endedFor = 10 * time.Minute

// slow is how long a part may take before the next one of its workspace is smaller.
const slow = time.Second

// Part is which rows of a workspace a transaction takes, from the oldest.
type Part struct {
	Skip int // rows that failed by themselves
	Most int
}

// turn is that of a workspace that is worked on, or has failed.
type turn struct {
	Part
	busy   bool
	after  time.Time     // when it may begin
	perRow time.Duration // of the last part, if it was slow; else 0
}

// Each calls work once for each workspace with rows, in random order, but those that another
// call works on or that have failed lately. It returns how many rows work has done.
func (q *Queue) Each(ctx context.Context, work func(ctx context.Context, workspace uuid.UUID, next Part) (done int, err error)) (
	done int, err error) {
	read := time.Now()
	workspaces, err := q.waiting(ctx)
	if err != nil {
		return 0, err
	}
	rand.Shuffle(len(workspaces), func(i, j int) { workspaces[i], workspaces[j] = workspaces[j], workspaces[i] })
	var failed loop.Errors
	for _, ws := range workspaces {
		next, ok := q.begin(ws, read)
		if !ok {
			continue
		}
		n, begun := 0, time.Now()
		err := lemma.Recovered(func() (err error) { n, err = q.within(ctx, ws, next, work); return err })
		q.end(ws, next, n, time.Since(begun), err)
		if err != nil {
			failed.Add(fmt.Errorf("work %s of workspace %s: %w", q.table, ws, err))
		}
		done += n
	}
	return done, failed.Err()
}

func (q *Queue) within(ctx context.Context, ws uuid.UUID, next Part,
	work func(context.Context, uuid.UUID, Part) (int, error)) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, q.Limit)
	defer cancel()
	return work(ctx, ws, next)
}

// waiting returns the workspaces with rows. It skips from one to the next.
func (q *Queue) waiting(ctx context.Context) ([]uuid.UUID, error) {
	rows, _ := q.pool.Query(ctx, `
		with recursive w as (
			(select workspace_id from `+q.table+` order by workspace_id limit 1)
			union all
			select n.workspace_id from w cross join lateral (
				select q.workspace_id from `+q.table+` q where q.workspace_id > w.workspace_id order by q.workspace_id limit 1) n
		)
		select workspace_id from w`)
	found, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	return found, lemma.Wrap(err, "find workspaces in %s", q.table)
}

// begin marks a workspace as being worked on and returns which rows. It refuses one whose rows
// another call has taken since the list of workspaces was read.
func (q *Queue) begin(ws uuid.UUID, read time.Time) (next Part, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended[ws].After(read) {
		return Part{}, false
	}
	of, known := q.of[ws]
	if !known {
		of.Most = q.chunk
	}
	if of.busy || time.Now().Before(of.after) {
		return Part{}, false
	}
	of.busy = true
	q.of[ws] = of
	return of.Part, true
}

// end chooses the next part of a workspace by how many rows of its last part are done, and how
// long that took. After an error it takes half as many, and leaves a row out that failed by
// itself. What was left out is tried again at the end of the queue, row by row. After a slow
// part it takes half as many as well, unless fewer rows have made each of them slower: then the
// database is slow, and not these rows.
func (q *Queue) end(ws uuid.UUID, last Part, done int, took time.Duration, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	if now.Sub(q.cleaned) > endedFor {
		maps.DeleteFunc(q.ended, func(_ uuid.UUID, at time.Time) bool { return now.Sub(at) > endedFor })
		q.cleaned = now
	}
	q.ended[ws] = now
	next, perRow := turn{after: now.Add(q.Pause)}, took/time.Duration(max(1, done))
	switch {
	case err != nil && last.Most == 1:
		next.Part = Part{last.Skip + 1, 1}
	case err != nil:
		next.Part = Part{last.Skip, last.Most / 2}
	case last.Skip > 0 && done < last.Most:
		next.Part = Part{0, 1}
	case took > slow && (q.of[ws].perRow == 0 || perRow < q.of[ws].perRow*3/2):
		next = turn{Part: Part{last.Skip, max(1, last.Most/2)}, perRow: perRow}
	case last.Skip > 0 || last.Most < q.chunk:
		next = turn{Part: Part{last.Skip, min(q.chunk, last.Most*2)}}
	default:
		delete(q.of, ws)
		return
	}
	if isOfARow(err) {
		next.after = time.Time{}
	}
	q.of[ws] = next
}

// isOfARow reports whether an error comes again each time: a row violates the schema, or makes
// the code panic.
func isOfARow(err error) bool {
	_, isPanic := errors.AsType[*lemma.Panic](err)
	return isPanic || pgerr.Violation(err)
}

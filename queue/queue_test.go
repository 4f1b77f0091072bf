package queue

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/pgtest"
)

// The next part of a workspace that failed is smaller, and later unless a row is the cause. A
// row that fails by itself is left out until the end of the queue.
func TestTurns(t *testing.T) {
	t.Parallel()
	late, ofRow := context.DeadlineExceeded, &lemma.Panic{}
	q, ws := New(nil, "", 4), lemma.NewID()
	for i, turn := range []struct {
		Part
		done int
		err  error
		took time.Duration
	}{
		{Part{0, 4}, 4, nil, 0}, {Part{0, 4}, 0, late, 0}, {Part{0, 2}, 0, ofRow, 0}, {Part{0, 1}, 0, ofRow, 0},
		{Part{1, 1}, 0, late, 0}, {Part{2, 1}, 1, nil, 0}, {Part{2, 2}, 2, nil, 0}, {Part{2, 4}, 4, nil, 0}, {Part{2, 4}, 0, ofRow, 0},
		{Part{2, 2}, 2, nil, 0}, {Part{2, 4}, 4, nil, 2 * slow}, {Part{2, 2}, 2, nil, 0}, {Part{2, 4}, 3, nil, 0},
		{Part{0, 1}, 1, nil, 0}, {Part{0, 2}, 1, nil, 0}, {Part{0, 4}, 4, nil, 2 * slow}, {Part{0, 2}, 2, nil, 6 * slow / 5},
		{Part{0, 1}, 1, nil, 0}, {Part{0, 2}, 2, nil, 0}, {Part{0, 4}, 0, nil, 0},
	} {
		next, ok := q.begin(ws, time.Now())
		if !ok || next != turn.Part {
			t.Errorf("turn %d: %v, %v; want %v", i, next, ok, turn.Part)
		}
		if _, ok := q.begin(ws, time.Now()); ok {
			t.Error("two at a time")
		}
		q.end(ws, next, turn.done, turn.took, turn.err)
		of, known := q.of[ws]
		isEnd := turn.Skip > 0 && turn.done < turn.Most && turn.err == nil
		if later := of.after.After(time.Now()); later != (turn.err == late || isEnd) {
			t.Errorf("turn %d: the next is at %v", i, of.after)
		}
		if of.after = (time.Time{}); known {
			q.of[ws] = of
		}
	}
	if len(q.of) != 0 {
		t.Errorf("kept: %v", q.of)
	}
}

// A workspace whose work panics or fails does not stop the others, and is tried again.
func TestAWorkspaceThatFails(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	q := New(pool, "conversion_queue", 10)
	q.Pause = 0
	var all []uuid.UUID
	for range 4 {
		ws := pgtest.Workspace(t, pool)
		_, err := pool.Exec(t.Context(), `insert into conversion_queue (workspace_id, received_at, key) values ($1, now(), $1)`, ws)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, ws)
	}
	for range 2 {
		calls := map[uuid.UUID]int{}
		n, err := q.Each(t.Context(), func(_ context.Context, ws uuid.UUID, _ Part) (int, error) {
			calls[ws]++
			switch ws {
			case all[0]:
				panic("a row")
			case all[1]:
				return 0, errors.New("a row")
			}
			return 1, nil
		})
		if n != 2 || err == nil || len(calls) != 4 || calls[all[0]] != 1 {
			t.Errorf("%d, %v, %v", n, err, calls)
		}
	}
}

// Work that takes too long is ended, so that its goroutine goes on with other workspaces.
func TestWorkHasALimitOfTime(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	q := New(pool, "conversion_queue", 10)
	q.Limit = 10 * time.Millisecond
	ws := pgtest.Workspace(t, pool)
	_, err := pool.Exec(t.Context(), `insert into conversion_queue (workspace_id, received_at, key) values ($1, now(), $1)`, ws)
	if err != nil {
		t.Fatal(err)
	}
	_, err = q.Each(t.Context(), func(ctx context.Context, _ uuid.UUID, _ Part) (int, error) { <-ctx.Done(); return 0, ctx.Err() })
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

// A part is smaller only while that makes it quicker: of a slow database, parts stay large.
func TestPartsOfASlowDatabase(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fixed, row time.Duration
		least      int
		quickest   time.Duration
	}{
		"slow rows":       {0, 30 * time.Millisecond, 31, 930 * time.Millisecond},
		"a slow database": {2 * time.Second, 100 * time.Microsecond, 500, 2100 * time.Millisecond},
	} {
		q, ws := New(nil, "", 1000), lemma.NewID()
		least, quickest := 1000, time.Hour
		for range 30 {
			part, ok := q.begin(ws, time.Now())
			if !ok {
				t.Fatal(name)
			}
			took := c.fixed + time.Duration(part.Most)*c.row
			least, quickest = min(least, part.Most), min(quickest, took)
			q.end(ws, part, part.Most, took, nil)
		}
		if least < c.least || quickest > c.quickest {
			t.Errorf("%s: at least %d rows in %v", name, least, quickest)
		}
	}
}

// A workspace that another call has worked on since the list was read is not worked on again.
func TestEachWorkspaceOnce(t *testing.T) {
	t.Parallel()
	q, ws := New(nil, "", 10), lemma.NewID()
	read := time.Now()
	part, ok := q.begin(ws, read)
	if !ok {
		t.Fatal("it does not begin")
	}
	q.end(ws, part, 1, 0, nil)
	if _, ok := q.begin(ws, read); ok {
		t.Error("the same list is worked on twice")
	}
	if _, ok := q.begin(ws, time.Now()); !ok {
		t.Error("the next list is not worked on")
	}
}

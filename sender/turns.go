package sender

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/notifications"
)

// Bells come in the order in which they were rung, and a workspace that rings a
// thousand first would be served a thousand times first. So the next batch is
// drawn in two steps: a workspace at random out of those that have work, and
// then what of its work is due first. With one workspace nothing is drawn.

const (
	turnsEvery = 250 * time.Millisecond // how often a node looks which workspaces have work
	turnsMost  = 100                    // workspaces that it looks at in one go; the others come next
	turnsLot   = 16                     // due batches among which one is picked, so that workers do not meet
)

type turns struct {
	mu     sync.Mutex
	at     time.Time   // when it was last looked
	having []uuid.UUID // workspaces that had due batches then
	after  uuid.UUID   // where the next look begins
}

// serveAnother works a batch of another workspace if it is that one's turn, and
// says whether it did.
func (s *Sender) serveAnother(ctx context.Context, ref notifications.Ref) bool {
	workspace := s.turn(ctx, ref.WorkspaceID)
	if workspace == ref.WorkspaceID {
		return false
	}
	other, err := s.dueFirst(ctx, workspace)
	if err != nil || other.BatchID == uuid.Nil {
		s.passTurn(workspace, err)
		return false
	}
	p := s.enterNow(ctx, other)
	if p == nil {
		s.passTurn(workspace, nil)
		return false
	}
	defer s.places.leave(p)
	again, err := s.work(ctx, other, p)
	if !p.claimed {
		s.passTurn(workspace, err)
		return false
	}
	if again > 0 && err == nil {
		err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error { // its own bell may have come meanwhile, and gone
			return s.ledger.Enqueue(ctx, tx, []notifications.Job{{Ref: other, After: again}})
		})
	}
	s.turnFailed(err)
	return true
}

// turnFailed leaves a batch to its own bell, or to the sweep.
func (s *Sender) turnFailed(err error) {
	if err != nil {
		s.log.Error("turn of another workspace failed", "error", err)
	}
}

// passTurn leaves a workspace out until the next look: nothing of it can be
// worked here now.
func (s *Sender) passTurn(workspace uuid.UUID, err error) {
	s.turnFailed(err)
	s.turns.mu.Lock()
	defer s.turns.mu.Unlock()
	s.turns.having = slices.DeleteFunc(s.turns.having, func(w uuid.UUID) bool { return w == workspace })
}

// turn draws a workspace out of those that have work and own.
func (s *Sender) turn(ctx context.Context, own uuid.UUID) uuid.UUID {
	t := &s.turns
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(t.at) > turnsEvery {
		t.at = time.Now()
		if err := s.lookForTurns(ctx); err != nil {
			s.turnFailed(err)
		}
	}
	n := len(t.having)
	if n == 0 {
		return own
	}
	if !slices.Contains(t.having, own) {
		n++
	}
	if i := rand.IntN(n); i < len(t.having) {
		return t.having[i]
	}
	return own
}

// lookForTurns steps from workspace to workspace: each costs one look into the
// index, however many batches wait in it.
func (s *Sender) lookForTurns(ctx context.Context) error {
	rows, err := s.pool.Query(ctx, `
		with recursive w as (
			(select workspace_id, due_at, 1 as n from batches
			where status = 'ready' and gate = 'open' and workspace_id > $1 order by workspace_id, due_at limit 1)
			union all
			select b.workspace_id, b.due_at, w.n + 1 from w cross join lateral (
				select workspace_id, due_at from batches
				where status = 'ready' and gate = 'open' and workspace_id > w.workspace_id order by workspace_id, due_at limit 1) b
			where w.n < $2
		)
		select workspace_id, due_at <= now() from w`, s.turns.after, turnsMost)
	if err != nil {
		return fmt.Errorf("look which workspaces have work: %w", err)
	}
	s.turns.having, s.turns.after = s.turns.having[:0], uuid.Nil
	var workspace uuid.UUID
	var due bool
	n := 0
	_, err = pgx.ForEachRow(rows, []any{&workspace, &due}, func() error {
		if n++; due {
			s.turns.having = append(s.turns.having, workspace)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("look which workspaces have work: %w", err)
	}
	if n == turnsMost {
		s.turns.after = workspace
	}
	return nil
}

// dueFirst picks one of a workspace's batches that have been due for longest.
func (s *Sender) dueFirst(ctx context.Context, workspace uuid.UUID) (notifications.Ref, error) {
	rows, err := s.pool.Query(ctx, `
		select workspace_id, origin_id, id from batches
		where workspace_id = $1 and status = 'ready' and gate = 'open' and due_at <= now()
		  and not exists (select from provider_meters m where m.workspace_id = $1 and m.provider_id = batches.provider_id and m.open_until > now())
		order by due_at limit $2`, workspace, turnsLot)
	if err != nil {
		return notifications.Ref{}, fmt.Errorf("find work of workspace %s: %w", workspace, err)
	}
	due, err := pgx.CollectRows(rows, pgx.RowToStructByPos[notifications.Ref])
	if err != nil || len(due) == 0 {
		return notifications.Ref{}, err
	}
	return due[rand.IntN(len(due))], nil
}

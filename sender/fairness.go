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
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/notifications"
)

// Jobs run in the order in which they were enqueued, so a workspace that enqueues a
// thousand batches first would be served a thousand times first. A worker therefore
// chooses its batch in two steps: at random one of the workspaces with due batches,
// and then one of its first due batches. A single workspace is served without a
// choice. Direct notifications have workers of their own, which choose among
// workspaces with due direct notifications.
//
// In one workspace, a provider that is down or slow may have thousands of jobs at a moment, which
// find no slot. So a job of direct notifications that has to wait for long works a small batch of
// another provider besides, if one of the last that became due is one.

const (
	readWorkspacesEvery = 250 * time.Millisecond // how often a process reads which workspaces have due batches
	mostWorkspaces      = 100                    // workspaces per read; the next read continues after them
	mostDue             = 32                     // due batches to choose from, so that workers do not choose the same
	lastDue             = 500                    // that became due last, among which those of other providers are looked for
	smallBatch          = 10                     // rows of one that a job works besides its own, which waits meanwhile
	longWait            = 2 * time.Second        // of the own batch, from which on a job does so
)

// The batches that a worker chooses from, as the predicates of the indexes
// batches_direct_by_due and batches_by_due have them: see notifications.IsDirect.
const (
	isDirect  = `get_byte(uuid_send(origin_id), 6) >> 4 = 8`
	notDirect = `get_byte(uuid_send(origin_id), 6) >> 4 <> 8`
)

type fairness struct {
	of string // isDirect or notDirect

	mu         sync.Mutex
	at         time.Time   // the last read
	workspaces []uuid.UUID // with due batches at that time
	after      uuid.UUID   // where the next read begins

	none map[uuid.UUID]time.Time // by workspace: when none of another provider could be worked
}

// fairnessOf is the choice for the job of a batch.
func (s *Sender) fairnessOf(ref notifications.Ref) *fairness {
	if notifications.IsDirect(ref.OriginID) {
		return &s.directFairness
	}
	return &s.fairness
}

// serveAnother works a batch of another workspace if one was chosen, and reports
// whether it did.
func (s *Sender) serveAnother(ctx context.Context, ref notifications.Ref) bool {
	f := s.fairnessOf(ref)
	workspace := s.pickWorkspace(ctx, f, ref.WorkspaceID)
	if workspace == ref.WorkspaceID {
		return false
	}
	other, err := s.dueFirst(ctx, f, workspace)
	if err != nil || other.BatchID == uuid.Nil {
		s.leaveOut(f, workspace, err)
		return false
	}
	if limit := s.waitsForRead(s.slotsOf(other), other); limit != "" {
		s.logFailure(s.putOff(ctx, other, s.readLater(s.slotsOf(other), other.OriginID, limit)))
		return false
	}
	p := s.acquireNow(ctx, other)
	if p == nil {
		s.leaveOut(f, workspace, nil)
		return false
	}
	s.at(ctx, "chosen", other)
	claimed, taken := s.serve(ctx, other, p)
	if !claimed && !taken {
		s.leaveOut(f, workspace, nil)
	}
	return claimed
}

// serve works a batch by the job of another one, and reports whether it was claimed, or was taken by
// another worker before.
func (s *Sender) serve(ctx context.Context, other notifications.Ref, p *slot) (claimed, taken bool) {
	defer p.release()
	again, err := s.work(ctx, other, p)
	if p.claimed && again > 0 && err == nil {
		s.logFailure(pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error { // its own job may have run meanwhile, without result
			return s.ledger.Enqueue(ctx, tx, []notifications.Job{{Ref: other, After: again}})
		}))
	}
	return p.claimed, again == 0 && err == nil
}

// serveOtherProvider works a batch of the same workspace over another provider, while the job's own
// batch has to wait.
func (s *Sender) serveOtherProvider(ctx context.Context, ref notifications.Ref) {
	f := s.fairnessOf(ref)
	if !f.mayHaveOther(ref.WorkspaceID) {
		return
	}
	other, err := s.dueOfOther(ctx, f, ref)
	if err != nil || other.BatchID == uuid.Nil {
		s.logFailure(err)
		f.hasNoOther(ref.WorkspaceID)
		return
	}
	served := false
	if s.waitsForRead(s.slotsOf(other), other) == "" { // otherwise its own job puts it off
		if p := s.acquireNow(ctx, other); p != nil {
			claimed, taken := s.serve(ctx, other, p)
			served = claimed || taken
		}
	}
	if !served {
		f.hasNoOther(ref.WorkspaceID)
	}
}

// mayHaveOther reports whether batches of another provider are to be looked for again.
func (f *fairness) mayHaveOther(workspace uuid.UUID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Since(f.none[workspace]) > readWorkspacesEvery
}

func (f *fairness) hasNoOther(workspace uuid.UUID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.none == nil || len(f.none) >= mostWaiting {
		f.none = map[uuid.UUID]time.Time{}
	}
	f.none[workspace] = time.Now()
}

// putOff makes a batch due later, so that the next choice is another one of its workspace.
func (s *Sender) putOff(ctx context.Context, ref notifications.Ref, by time.Duration) error {
	_, err := s.pool.Exec(ctx, `
		update batches set due_at = greatest(due_at, now() + $4) where workspace_id = $1 and origin_id = $2 and id = $3 and `+isReady,
		ref.WorkspaceID, ref.OriginID, ref.BatchID, by)
	return err
}

// logFailure reports that a batch of another job was not found or enqueued. Its own
// job or the sweep retries it.
func (s *Sender) logFailure(err error) {
	if err != nil {
		s.log.Error("batch of another job not found or enqueued", "kind", kindOf(err), "error", err)
	}
}

// leaveOut excludes a workspace until the next read: none of its batches can be worked
// here now.
func (s *Sender) leaveOut(f *fairness, workspace uuid.UUID, err error) {
	s.logFailure(err)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.workspaces = slices.DeleteFunc(f.workspaces, func(w uuid.UUID) bool { return w == workspace })
}

// pickWorkspace chooses at random one of the workspaces with due batches, including
// own.
func (s *Sender) pickWorkspace(ctx context.Context, f *fairness, own uuid.UUID) uuid.UUID {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.at) > readWorkspacesEvery {
		f.at = time.Now()
		if err := f.readWorkspaces(ctx, s.pool); err != nil {
			s.logFailure(err)
		}
	}
	n := len(f.workspaces)
	if n == 0 {
		return own
	}
	if !slices.Contains(f.workspaces, own) {
		n++
	}
	if i := rand.IntN(n); i < len(f.workspaces) {
		return f.workspaces[i]
	}
	return own
}

// readWorkspaces reads the workspaces with ready batches by one index search each,
// however many batches are ready.
func (f *fairness) readWorkspaces(ctx context.Context, pool *pgxpool.Pool) error {
	rows, _ := pool.Query(ctx, `
		with recursive w as (
			(select workspace_id, due_at, 1 as n from batches
			where status = 'ready' and gate = 'open' and `+f.of+` and workspace_id > $1 order by workspace_id, due_at limit 1)
			union all
			select b.workspace_id, b.due_at, w.n + 1 from w cross join lateral (
				select workspace_id, due_at from batches
				where status = 'ready' and gate = 'open' and `+f.of+` and workspace_id > w.workspace_id
				order by workspace_id, due_at limit 1) b
			where w.n < $2
		)
		select workspace_id, due_at <= now() from w`, f.after, mostWorkspaces)
	f.workspaces, f.after = f.workspaces[:0], uuid.Nil
	var workspace uuid.UUID
	var due bool
	n := 0
	_, err := pgx.ForEachRow(rows, []any{&workspace, &due}, func() error {
		if n++; due {
			f.workspaces = append(f.workspaces, workspace)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read workspaces with due batches: %w", err)
	}
	if n == mostWorkspaces {
		f.after = workspace
	}
	return nil
}

// dueFirst chooses one of a workspace's first due batches.
func (s *Sender) dueFirst(ctx context.Context, f *fairness, workspace uuid.UUID) (notifications.Ref, error) {
	rows, _ := s.pool.Query(ctx, `
		select workspace_id, origin_id, id from batches
		where workspace_id = $1 and status = 'ready' and gate = 'open' and `+f.of+` and due_at <= now()
		  and not exists (select from provider_meters m
			where m.workspace_id = $1 and m.provider_id = batches.provider_id and m.open_until > now())
		order by due_at limit $2`, workspace, mostDue)
	due, err := pgx.CollectRows(rows, pgx.RowToStructByPos[notifications.Ref])
	if err != nil || len(due) == 0 {
		return notifications.Ref{}, err
	}
	return due[rand.IntN(len(due))], nil
}

// dueOfOther chooses one of the batches of a workspace that became due last over another provider than
// that of a batch.
func (s *Sender) dueOfOther(ctx context.Context, f *fairness, ref notifications.Ref) (notifications.Ref, error) {
	rows, _ := s.pool.Query(ctx, `
		select d.workspace_id, d.origin_id, d.id from (
			select workspace_id, origin_id, id, provider_id, size, due_at from batches
			where workspace_id = $1 and status = 'ready' and gate = 'open' and `+f.of+` and due_at <= now()
			order by due_at desc limit $4) d
		where d.provider_id is distinct from (select provider_id from batches where workspace_id = $1 and origin_id = $2 and id = $3)
		  and d.size <= $6 and not exists (select from provider_meters m
			where m.workspace_id = $1 and m.provider_id = d.provider_id and m.open_until > now())
		order by d.due_at desc limit $5`, ref.WorkspaceID, ref.OriginID, ref.BatchID, lastDue, mostDue, smallBatch)
	due, err := pgx.CollectRows(rows, pgx.RowToStructByPos[notifications.Ref])
	if err != nil || len(due) == 0 {
		return notifications.Ref{}, lemma.Wrap(err, "find a due batch of another provider")
	}
	return due[rand.IntN(len(due))], nil
}

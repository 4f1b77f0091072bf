package flows

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/flows/enrollment"
	"lemma/flows/execution"
	"lemma/loop"
)

// Loop advances enrollments until ctx ends. Workers advance due enrollments; further
// goroutines do the periodic work. Every process may run it.
func (f *Flows) Loop(ctx context.Context) {
	var all sync.WaitGroup
	for range f.cfg.Workers {
		all.Go(func() { f.work(ctx) })
	}
	all.Go(func() { f.pollShards(ctx) })
	all.Go(func() { f.every(ctx, tickEvery, "raise the bounds of idle shards", f.raiseBounds) })
	all.Go(func() { f.every(ctx, tickEvery, "move enrollments between versions", f.moveAround) })
	all.Go(func() { f.every(ctx, tickEvery, "poll audiences", f.Intake.PollDue) })
	all.Go(func() { f.every(ctx, tickEvery, "archive drained flows", f.archiveDrained) })
	all.Go(func() {
		f.every(ctx, tickEvery, retrying, func(ctx context.Context) error { f.retryInBackground(ctx, &all); return nil })
	})
	all.Go(func() {
		f.every(ctx, time.Hour, "forget events", func(ctx context.Context) error { _, err := f.Forget(ctx); return err })
	})
	all.Wait()
	f.Intake.Wait()
}

// Tick does once what Loop does each second.
func (f *Flows) Tick(ctx context.Context) error {
	return errors.Join(f.moveAround(ctx), f.archiveDrained(ctx), f.Intake.PollDue(ctx), f.startRetries(ctx)())
}

// shardLease is the right to advance one shard of a flow's enrollments.
type shardLease struct {
	ws, flow uuid.UUID
	shard    int16
	token    string
	now      time.Time // the database's
	briefly  bool      // its worker waits for no lock for long

	// Of the last pause before the enrollments were read; nil: none.
	pauseEnded, caughtUp *time.Time // caughtUp: all that became due in it had been released, or will be

	// During the release of enrollments that became due in a pause:
	resumedAt *time.Time // when the pause ended
	release   *int       // how many of them may advance now
	released  int        // how many did
}

// RunOnce leases the shard with due enrollments that was advanced longest ago, and
// advances one chunk. It returns the number of enrollments read; 0 when none is due.
func (f *Flows) RunOnce(ctx context.Context) (int, error) {
	n, _, err := f.runOnce(ctx, enrollment.Shard{})
	return n, err
}

// runOnce is RunOnce for one shard, or for all. claimed reports whether it leased a shard,
// even if no enrollment was left to read.
func (f *Flows) runOnce(ctx context.Context, where enrollment.Shard) (n int, claimed bool, err error) {
	begun := time.Now()
	t, err := f.claimShard(ctx, where)
	if err == nil && t == nil && where == (enrollment.Shard{}) {
		f.idlePoll.Store(int64(time.Since(begun)))
	}
	if err != nil || t == nil {
		return 0, false, err
	}
	f.hook.At("claimed")
	briefly, leave := f.lockWaits.enter()
	defer leave()
	t.briefly = briefly
	n, err = f.advance(ctx, t)
	rest := time.Duration(0)
	switch {
	case t.briefly && enrollment.Locked(err): // by another transaction: the enrollments stay due
		rest, err = restLocked, nil
		f.metrics.Conflicts.Add(float64(n))
	case err != nil && ctx.Err() == nil:
		rest = restAfterError
		f.metrics.Failed("shard")
	}
	return n, true, errors.Join(err, f.releaseShard(*t, rest))
}

// mayRelease is the number of enrollments that became due in a pause which shard t of flow
// f may release now; null without a pause. A release of no length is over, also if the clock
// was set back since.
const mayRelease = `case when f.catch_up_until > greatest(now(), f.resumed_at) then
	ceil(t.held * extract(epoch from now() - f.resumed_at) / extract(epoch from f.catch_up_until - f.resumed_at))::bigint - t.released end`

// claimShard is one statement. It leases a free shard with due enrollments: of a workspace
// in random order, so that a workspace with many flows gets no more workers than one with
// few, and of its shards the one that was advanced longest ago. It reads the shards whose
// bound has passed: see enrollment/bound.go. A shard in where restricts it to that one. See
// "first row by a subquery" in enrollment/plans.go.
func (f *Flows) claimShard(ctx context.Context, where enrollment.Shard) (*shardLease, error) {
	t := shardLease{token: lemma.NewID().String()}
	which, args := "true", []any{t.token, f.cfg.Lease, rand.Int64()}
	if where != (enrollment.Shard{}) {
		which, args = "(t.workspace_id, t.flow_id, t.shard) = ($4, $5, $6)", append(args, where.Workspace, where.Flow, where.Number)
	}
	err := f.pool.QueryRow(ctx, `
		with next as (
			select t.workspace_id, t.flow_id, t.shard, case when r.n is not null then f.resumed_at end as resumed_at, r.n as release,
				f.resumed_at as pause_ended, greatest(f.catch_up_until, f.resumed_at) as caught_up
			from flow_shards t
			join flows f on f.workspace_id = t.workspace_id and f.id = t.flow_id
			cross join lateral (select `+mayRelease+` as n) r
			where `+which+` and t.next_due_at <= now() and f.status in ('live', 'draining')
			  and t.retry_at <= now() and (t.lease_until is null or t.lease_until < now())
			  and (coalesce(r.n, 1) > 0 and (
					select e.resume_at from enrollments e
					where e.workspace_id = t.workspace_id and e.shard = t.shard and e.flow_id = t.flow_id and e.resume_at is not null
					order by e.resume_at limit 1
				) <= case when r.n is null then now() else f.resumed_at end
				or r.n is not null and (
					select e.resume_at from enrollments e
					where e.workspace_id = t.workspace_id and e.shard = t.shard and e.flow_id = t.flow_id and e.resume_at is not null
						and e.resume_at > f.resumed_at
					order by e.resume_at limit 1
				) <= now())
			order by uuid_hash_extended(t.workspace_id, $3), t.worked_at limit 1 for update of t skip locked
		)
		update flow_shards t set leased_by = $1, lease_until = now() + $2
		from next n where t.workspace_id = n.workspace_id and t.flow_id = n.flow_id and t.shard = n.shard
		returning t.workspace_id, t.flow_id, t.shard, now(), n.resumed_at, n.release, n.pause_ended, n.caught_up`, args...).
		Scan(&t.ws, &t.flow, &t.shard, &t.now, &t.resumedAt, &t.release, &t.pauseEnded, &t.caughtUp)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("claim a shard: %w", err)
	}
	return &t, nil
}

// where is the shard that the lease is for.
func (t *shardLease) where() enrollment.Shard {
	return enrollment.Shard{Workspace: t.ws, Flow: t.flow, Number: t.shard}
}

// restAfterError delays a shard after an error, and restLocked one that is locked, so that others are advanced first.
const (
	restAfterError = 2 * time.Second
	restLocked     = 500 * time.Millisecond
)

// releaseShard ends the lease, also during a shutdown.
func (f *Flows) releaseShard(t shardLease, rest time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err := f.pool.Exec(ctx, `
		update flow_shards set leased_by = null, lease_until = null, worked_at = now(), retry_at = now() + $5, released = released + $6
		where workspace_id = $1 and flow_id = $2 and shard = $3 and leased_by = $4`, t.ws, t.flow, t.shard, t.token, rest, t.released)
	return lemma.Wrap(err, "release shard")
}

// advance advances one chunk of a shard.
func (f *Flows) advance(ctx context.Context, t *shardLease) (int, error) {
	begun := time.Now()
	chunk, err := f.readDue(ctx, t)
	if err != nil || len(chunk) == 0 {
		return 0, err
	}
	f.hook.At("read")
	if err := f.moveChunk(ctx, t, chunk); err != nil {
		return len(chunk), err
	}
	f.metrics.Advanced(len(chunk), time.Since(begun))
	for _, one := range chunk {
		if one.LeftFor != "" {
			f.metrics.Left.WithLabelValues(one.LeftFor).Inc()
		}
	}
	return len(chunk), nil
}

// moveChunk executes a chunk and commits the results. A chunk that cannot be committed is
// bisected until one enrollment remains; only that one is blocked.
func (f *Flows) moveChunk(ctx context.Context, t *shardLease, chunk []*execution.Execution) error {
	err := lemma.Recovered(func() error { return f.tryChunk(ctx, t, chunk) }) // a panic blocks the enrollment at fault, not its shard
	switch {
	case err == nil, errors.Is(err, errNotMoving):
		return nil
	case ctx.Err() != nil, t.briefly && enrollment.Locked(err), ofConnection(err), f.pool.Ping(ctx) != nil: // not the chunk's fault
		return err
	case len(chunk) > 1:
		f.metrics.Failed("chunk")
		f.log.Warn("a chunk of enrollments cannot be committed: it is bisected", "flow_id", t.flow, "enrollments", len(chunk), "error", err)
		half := len(chunk) / 2
		return errors.Join(f.moveChunk(ctx, t, execution.Again(chunk[:half])), f.moveChunk(ctx, t, execution.Again(chunk[half:])))
	}
	f.log.Error("enrollment cannot be advanced", "flow_id", t.flow, "enrollment_id", chunk[0].ID, "error", err)
	one := execution.Again(chunk)[0]
	one.Block(string(lemma.Internal), f.Execution.BackOff(one.FailuresBy(string(lemma.Internal))))
	f.metrics.Blocked.WithLabelValues(one.Blocked).Inc()
	_, err = f.commit(ctx, t, []*execution.Execution{one})
	t.countReleased([]*execution.Execution{one})
	return err
}

// countReleased counts those of a chunk that became due in a pause.
func (t *shardLease) countReleased(chunk []*execution.Execution) {
	for _, one := range chunk {
		if one.Read.Held {
			t.released++
		}
	}
}

// tryChunk executes a chunk and commits what was not left for the next one.
func (f *Flows) tryChunk(ctx context.Context, t *shardLease, chunk []*execution.Execution) error {
	if err := f.Execution.Evaluate(ctx, chunk); err != nil {
		return err
	}
	f.hook.At("evaluated")
	chunk = execution.Evaluated(chunk)
	moved, err := f.commit(ctx, t, chunk)
	if err != nil {
		return err
	}
	t.countReleased(execution.Evaluated(chunk))
	f.hook.At("committed")
	if slices.ContainsFunc(moved, func(one *execution.Execution) bool { return len(one.Calls) > 0 }) {
		f.webhooks.Wake()
	}
	for _, one := range moved {
		if one.Blocked != "" {
			f.metrics.Blocked.WithLabelValues(one.Blocked).Inc()
		}
		for _, l := range one.Log {
			f.metrics.Steps.WithLabelValues(l.Event).Inc()
		}
	}
	return nil
}

// routeTime is how long versions are compiled for one chunk. The enrollments of others are left to the next ones, so
// that many large versions of a workspace do not hold a worker for long.
const routeTime = 200 * time.Millisecond

// readDue reads the next chunk of a shard: the enrollments that have been due longest.
func (f *Flows) readDue(ctx context.Context, t *shardLease) ([]*execution.Execution, error) {
	found, err := f.readDueRows(ctx, t)
	if err != nil {
		return nil, fmt.Errorf("read due enrollments: %w", err)
	}
	var chunk []*execution.Execution
	routes, begun := map[int]*execution.Route{}, time.Now()
	for _, d := range found {
		if routes[d.Version] == nil && len(routes) > 0 && time.Since(begun) > f.routeTime {
			continue
		}
		if t.pauseEnded != nil {
			d.Release(*t.pauseEnded, *t.caughtUp)
		}
		r := routes[d.Version]
		if r == nil {
			if r, err = f.routeFor(ctx, *t, d.Version); err != nil {
				return nil, err
			}
			routes[d.Version] = r
		}
		chunk = append(chunk, d.Execution(r, t.shard))
	}
	return chunk, nil
}

// routeFor is the route of a version. If it cannot be made, the enrollments of the version
// wait, and those of others advance.
func (f *Flows) routeFor(ctx context.Context, t shardLease, version int) (*execution.Route, error) {
	r, err := f.Execution.Route(ctx, t.ws, t.flow, version)
	if err == nil {
		return r, nil
	}
	if lemma.KindOf(err) == lemma.Internal {
		return nil, fmt.Errorf("read version %d: %w", version, err)
	}
	f.log.Error("version cannot be read", "flow_id", t.flow, "version", version, "error", err)
	return &execution.Route{WorkspaceID: t.ws, FlowID: t.flow, Version: version}, nil
}

// readDueRows reads due enrollments. During a release it first reads as many of those that
// became due in the pause as may be released now, and then later ones.
func (f *Flows) readDueRows(ctx context.Context, t *shardLease) ([]execution.Due, error) {
	if t.resumedAt == nil {
		return execution.ReadDue(ctx, f.pool, t.where(), time.Time{}, t.now, f.cfg.Chunk)
	}
	held, err := execution.ReadDue(ctx, f.pool, t.where(), time.Time{}, *t.resumedAt, max(0, min(*t.release, f.cfg.Chunk)))
	if err != nil {
		return nil, err
	}
	for i := range held {
		held[i].Held = true
	}
	since, err := execution.ReadDue(ctx, f.pool, t.where(), *t.resumedAt, t.now, f.cfg.Chunk-len(held))
	return append(held, since...), err
}

// tickEvery is the period of the other work. Work that a worker leaves behind is found
// within a minute.
const tickEvery = time.Second

// every calls a function periodically in its own goroutine, so that none waits for another
// that is slow or fails.
func (f *Flows) every(ctx context.Context, period time.Duration, what string, do func(context.Context) error) {
	counted := func(ctx context.Context) error { // each run, also if its error is not logged, since it is repeated
		err := lemma.Recovered(func() error { return do(ctx) })
		if err != nil && ctx.Err() == nil {
			f.metrics.Failed(what)
		}
		return err
	}
	loop.Every(ctx, period, counted, func(err error) { f.log.Error(what, "error", err) })
}

func (f *Flows) failed(what string, err error) {
	f.metrics.Failed(what)
	f.log.Error(what, "error", err)
}

// moveAround carries out open moves until none has enrollments left to move.
func (f *Flows) moveAround(ctx context.Context) error {
	for ctx.Err() == nil {
		if _, next, err := f.moveOnce(ctx); err != nil || !next {
			return err
		}
	}
	return nil
}

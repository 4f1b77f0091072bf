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
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
)

// Loop moves people, until ctx ends: workers advance who is due, and others mind
// the time and what happens now and then. It is safe on every node at once.
func (f *Flows) Loop(ctx context.Context) {
	var all sync.WaitGroup
	for range f.cfg.Workers {
		all.Go(func() { f.work(ctx) })
	}
	all.Go(func() { f.look(ctx) })
	all.Go(func() { f.every(ctx, tickEvery, "move people between versions", f.moveAround) })
	all.Go(func() { f.every(ctx, tickEvery, "poll audiences", f.pollDue) })
	all.Go(func() { f.every(ctx, tickEvery, "archive drained flows", f.archiveDrained) })
	all.Go(func() { f.every(ctx, tickEvery, "retry data sources", f.retrySources) })
	all.Go(func() {
		f.every(ctx, time.Hour, "forget events", func(ctx context.Context) error { _, err := f.Forget(ctx); return err })
	})
	all.Wait()
	f.polls.running.Wait()
}

// anyTurn is true of everybody; said so that those of a flow who are on the way
// are found by the index that begins with it.
const anyTurn = `turn = any('{0,1,2,3}'::smallint[])`

// turn is the right to advance a share of a flow's enrollments.
type turn struct {
	ws, flow uuid.UUID
	turn     int16
	token    string
	now      time.Time // the database's

	// While those whom a pause held up are being released:
	heldUntil *time.Time // when it ended
	release   *int       // how many of them may go now
	released  int        // how many did
}

// RunOnce takes the turn that has waited longest of those where somebody is
// due, and advances one lot. It answers how many it looked at, 0 when nobody is due.
func (f *Flows) RunOnce(ctx context.Context) (int, error) {
	n, _, err := f.runOnce(ctx, share{})
	return n, err
}

// runOnce is RunOnce on one share, or everywhere. claimed says whether it had a
// turn, also if nobody was left when it came to read who is due.
func (f *Flows) runOnce(ctx context.Context, where share) (n int, claimed bool, err error) {
	begun := time.Now()
	t, err := f.claimTurn(ctx, where)
	if err == nil && t == nil && where == (share{}) {
		f.idleLook.Store(int64(time.Since(begun)))
	}
	if err != nil || t == nil {
		return 0, false, err
	}
	f.at("claimed")
	n, err = f.advance(ctx, t)
	rest := time.Duration(0)
	if err != nil && ctx.Err() == nil {
		rest = restAfterError
		f.metrics.failed("turn")
	}
	return n, true, errors.Join(err, f.releaseTurn(*t, rest))
}

// mayRelease is how many of those whom a pause held up a turn t of a flow f may
// let go by now; null when there is no pause to come back from.
const mayRelease = `case when f.spread_until > now() then
	ceil(t.held * extract(epoch from now() - f.held_until) / extract(epoch from f.spread_until - f.held_until))::bigint - t.released end`

// claimTurn is one statement: due, free, of a workspace that is drawn by lot, so
// that one with many flows has no more of the workers than one with few, and of
// its turns the one that was worked on longest ago; or the turn of one share, if
// it is due and free. Who is due first is looked
// up by a subquery with a limit, which only the index on dues can answer: for a
// plain exists a planner may read everybody who waits.
func (f *Flows) claimTurn(ctx context.Context, where share) (*turn, error) {
	t := turn{token: lemma.NewID().String()}
	which, args := "true", []any{t.token, f.cfg.Lease, rand.Int64()}
	if where != (share{}) {
		which, args = "(t.workspace_id, t.flow_id, t.turn) = ($4, $5, $6)", append(args, where.ws, where.flow, where.turn)
	}
	err := f.pool.QueryRow(ctx, `
		with next as (
			select t.workspace_id, t.flow_id, t.turn, case when f.spread_until > now() then f.held_until end as held_until, r.n as release
			from flow_turns t
			join flows f on f.workspace_id = t.workspace_id and f.id = t.flow_id
			cross join lateral (select `+mayRelease+` as n) r
			where `+which+` and f.status in ('live', 'draining') and t.retry_at <= now() and (t.lease_until is null or t.lease_until < now())
			  and ((coalesce(r.n, 1) > 0 and (select e.resume_at from enrollments e where e.workspace_id = t.workspace_id and e.turn = t.turn and e.flow_id = t.flow_id
						and e.status = 'active' order by e.resume_at limit 1) <= case when r.n is null then now() else f.held_until end)
				or (r.n is not null and (select e.resume_at from enrollments e where e.workspace_id = t.workspace_id and e.turn = t.turn and e.flow_id = t.flow_id
						and e.status = 'active' and e.resume_at > f.held_until order by e.resume_at limit 1) <= now()))
			order by uuid_hash_extended(t.workspace_id, $3), t.worked_at limit 1 for update of t skip locked
		)
		update flow_turns t set leased_by = $1, lease_until = now() + $2
		from next n where t.workspace_id = n.workspace_id and t.flow_id = n.flow_id and t.turn = n.turn
		returning t.workspace_id, t.flow_id, t.turn, now(), n.held_until, n.release`, args...).
		Scan(&t.ws, &t.flow, &t.turn, &t.now, &t.heldUntil, &t.release)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("claim a turn: %w", err)
	}
	return &t, nil
}

// restAfterError lets others go before a turn that failed.
const restAfterError = 2 * time.Second

// releaseTurn gives a turn back, also while the program shuts down.
func (f *Flows) releaseTurn(t turn, rest time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err := f.pool.Exec(ctx, `
		update flow_turns set leased_by = null, lease_until = null, worked_at = now(), retry_at = now() + $5, released = released + $6
		where workspace_id = $1 and flow_id = $2 and turn = $3 and leased_by = $4`, t.ws, t.flow, t.turn, t.token, rest, t.released)
	if err != nil {
		return fmt.Errorf("release turn: %w", err)
	}
	return nil
}

// advance moves one lot of a turn.
func (f *Flows) advance(ctx context.Context, t *turn) (int, error) {
	begun := time.Now()
	lot, err := f.readDue(ctx, t)
	if err != nil || len(lot) == 0 {
		return 0, err
	}
	f.at("read")
	if err := f.moveLot(ctx, *t, lot); err != nil {
		return len(lot), err
	}
	f.metrics.advanced(len(lot), time.Since(begun))
	return len(lot), nil
}

// moveLot walks a lot and commits what came of it. A lot that cannot be
// committed is halved until it is known whose fault it is, and that one waits:
// nobody stands still because of another.
func (f *Flows) moveLot(ctx context.Context, t turn, lot []*traveller) error {
	err := f.tryLot(ctx, t, lot)
	switch {
	case err == nil, errors.Is(err, errHeld):
		return nil
	case ctx.Err() != nil, f.pool.Ping(ctx) != nil: // not the lot's fault
		return err
	case len(lot) > 1:
		f.metrics.failed("lot")
		f.log.Warn("a lot of enrollments is halved", "flow_id", t.flow, "enrollments", len(lot), "error", err)
		half := len(lot) / 2
		return errors.Join(f.moveLot(ctx, t, again(lot[:half])), f.moveLot(ctx, t, again(lot[half:])))
	}
	f.log.Error("enrollment cannot be advanced", "flow_id", t.flow, "enrollment_id", lot[0].id, "error", err)
	one := again(lot)[0]
	one.postpone(string(lemma.Internal), f.backOff(one.failures))
	f.metrics.postponed.WithLabelValues(one.trouble).Inc()
	_, err = f.commit(ctx, t.ws, t.flow, t.turn, []*traveller{one})
	return err
}

func (f *Flows) tryLot(ctx context.Context, t turn, lot []*traveller) error {
	if err := f.walkAll(ctx, lot); err != nil {
		return err
	}
	f.at("walked")
	moved, err := f.commit(ctx, t.ws, t.flow, t.turn, lot)
	if err != nil {
		return err
	}
	f.at("committed")
	if slices.ContainsFunc(moved, func(one *traveller) bool { return len(one.said) > 0 }) {
		f.webhooks.Wake()
	}
	for _, one := range moved {
		if one.trouble != "" {
			f.metrics.postponed.WithLabelValues(one.trouble).Inc()
		}
		for _, l := range one.log {
			f.metrics.steps.WithLabelValues(l.event).Inc()
		}
	}
	return nil
}

// again are travellers as they were read.
func again(lot []*traveller) []*traveller {
	fresh := make([]*traveller, len(lot))
	for i, t := range lot {
		fresh[i] = t.asRead()
	}
	return fresh
}

// due is an enrollment as it was read.
type due struct {
	id           uuid.UUID
	version      int
	key          string
	source       string
	at           place
	enrolledAt   time.Time
	failures     int
	moved        bool
	waitingSince *time.Time
	awaits       string
	heard        *uuid.UUID
	answerStep   int
	dueAt        time.Time // when it first was due
	now          time.Time
}

// readDue reads the lot of a turn: who has been due longest.
func (f *Flows) readDue(ctx context.Context, t *turn) ([]*traveller, error) {
	found, err := f.readDueRows(ctx, t)
	if err != nil {
		return nil, fmt.Errorf("read who is due: %w", err)
	}
	var lot []*traveller
	routes := map[int]*route{}
	for _, d := range found {
		r := routes[d.version]
		if r == nil {
			if r, err = f.routeFor(ctx, *t, d.version); err != nil {
				return nil, err
			}
			routes[d.version] = r
		}
		lot = append(lot, d.traveller(r, t.turn))
	}
	return lot, nil
}

// routeFor is the route of a version. While one cannot be made those of this
// version wait, and those of others go on.
func (f *Flows) routeFor(ctx context.Context, t turn, version int) (*route, error) {
	r, err := f.route(ctx, t.ws, t.flow, version)
	if err == nil {
		return r, nil
	}
	if lemma.KindOf(err) == lemma.Internal {
		return nil, fmt.Errorf("find the way of version %d: %w", version, err)
	}
	f.log.Error("version cannot be read", "flow_id", t.flow, "version", version, "error", err)
	return &route{workspace: t.ws, flow: t.flow, version: version}, nil
}

// readDueRows reads who is due; while a pause is being released, first as many
// of those whom it held up as may go by now, and then those who are due since.
func (f *Flows) readDueRows(ctx context.Context, t *turn) ([]due, error) {
	if t.heldUntil == nil {
		return f.readRange(ctx, *t, time.Time{}, t.now, f.cfg.Lot)
	}
	held, err := f.readRange(ctx, *t, time.Time{}, *t.heldUntil, max(0, min(*t.release, f.cfg.Lot)))
	if err != nil {
		return nil, err
	}
	t.released = len(held)
	since, err := f.readRange(ctx, *t, *t.heldUntil, t.now, f.cfg.Lot-len(held))
	return append(held, since...), err
}

// readRange reads who is due after one time and until another. Both are given
// as values, so that the index goes straight to them past everybody who waits.
func (f *Flows) readRange(ctx context.Context, t turn, after, until time.Time, limit int) ([]due, error) {
	rows, err := f.pool.Query(ctx, `
		select id, version, profile_key, source, node, step, enrolled_at, failures, moved, waiting_since, coalesce(awaits, ''), heard, coalesce(answer_step, 0), coalesce(due_since, resume_at), now()
		from enrollments
		where workspace_id = $1 and flow_id = $2 and turn = $3 and status = 'active' and resume_at > $4 and resume_at <= $5
		order by resume_at limit $6`, t.ws, t.flow, t.turn, after, until, limit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanDue)
}

func scanDue(row pgx.CollectableRow) (d due, err error) {
	var heard pgtype.UUID
	err = row.Scan((*[16]byte)(&d.id), &d.version, &d.key, &d.source, &d.at.node, &d.at.step, &d.enrolledAt, &d.failures, &d.moved, &d.waitingSince, &d.awaits, &heard, &d.answerStep, &d.dueAt, &d.now)
	if heard.Valid {
		key := uuid.UUID(heard.Bytes)
		d.heard = &key
	}
	return d, err
}

func (d due) traveller(r *route, turn int16) *traveller {
	t := &traveller{route: r, id: d.id, turn: turn, key: d.key, source: d.source, enrolledAt: d.enrolledAt, moved: d.moved, now: d.now, read: d}
	*t = *t.asRead()
	return t
}

// asRead is the traveller before it took a step.
func (t *traveller) asRead() *traveller {
	d := t.read
	arrived := d.dueAt
	if d.at.node == "" {
		arrived = d.enrolledAt
	}
	return &traveller{arrived: arrived, route: t.route, id: d.id, turn: t.turn, key: d.key, source: d.source, enrolledAt: d.enrolledAt, failures: d.failures, moved: d.moved,
		waitingSince: d.waitingSince, awaits: d.awaits, heard: d.heard, answerStep: d.answerStep, now: d.now, read: d,
		from: d.at, fromWaiting: d.waitingSince != nil, fromHeard: d.heard != nil, place: d.at, status: Active}
}

// at tells tests where a worker is.
func (f *Flows) at(stage string) {
	if f.hook != nil {
		f.hook(stage)
	}
}

// tickEvery is how often the rare things are minded; everything that a worker
// could leave lying is found within a minute.
const tickEvery = time.Second

// every minds one thing now and then. Each has a goroutine of its own, so that
// none waits for another that is long or fails.
func (f *Flows) every(ctx context.Context, period time.Duration, what string, do func(context.Context) error) {
	beat := time.NewTicker(period)
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-beat.C:
		}
		if err := lemma.Recovered(func() error { return do(ctx) }); err != nil && ctx.Err() == nil {
			f.metrics.failed(what)
			f.log.Error(what, "error", err)
		}
	}
}

// moveAround works at open moves until there is nobody left to move just now.
func (f *Flows) moveAround(ctx context.Context) error {
	for ctx.Err() == nil {
		if n, err := f.moveSome(ctx); err != nil || n == 0 {
			return err
		}
	}
	return nil
}

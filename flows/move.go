package flows

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
	"lemma/flows/enrollment"
	"lemma/flows/graph"
)

// A move takes active enrollments to another version or out of the flow. A flow has one
// open move; a later one replaces it. Enrollments of to_version stay; nil means none do.
// With an exit reason the others exit, without one they are moved.

// startMove inserts a move, under the flow's lock.
func startMove(ctx context.Context, tx pgx.Tx, ws, flow uuid.UUID, to *int, nodes map[string]*string, exit string) error {
	if nodes == nil {
		nodes = map[string]*string{}
	}
	_, err := tx.Exec(ctx, `
		insert into flow_moves (workspace_id, flow_id, id, to_version, node_map, exit_reason) values ($1, $2, $3, $4, $5, nullif($6, ''))`,
		ws, flow, lemma.NewID(), to, nodes, exit)
	return lemma.Wrap(err, "start move of flow %s", flow)
}

// endMoves ends the open move at its current state. It waits for the chunk that is being
// moved, and no further chunk begins.
func endMoves(ctx context.Context, tx pgx.Tx, ws, flow uuid.UUID) error {
	_, err := tx.Exec(ctx, `
		update flow_moves set finished_at = now(), leased_by = null, lease_until = null
		where workspace_id = $1 and flow_id = $2 and finished_at is null`, ws, flow)
	return lemma.Wrap(err, "end moves of flow %s", flow)
}

// moveLease is an open move that this worker has leased.
type moveLease struct {
	ws, flow, id uuid.UUID
	token        string
	to           *int
	nodes        map[string]*string
	exit         string

	target   *graph.Definition // of to, once it is needed
	from     *graph.Definition // of fromVersion, the last that was needed: a flow has many versions, and they may be large
	stranded int               // enrollments that could not be moved

	fromVersion int
}

// by is the actor of the move in the steps.
func (o *moveLease) by() string {
	if o.exit == enrollment.ExitArchived {
		return "archive"
	}
	return "publish"
}

// chunksAtOnce is how many chunks are read in one query. The query scans the active
// enrollments, so it runs rarely; each id takes 16 bytes.
const chunksAtOnce = 100

// moveTime is how long a move is carried out while those of other workspaces wait.
const moveTime = time.Second

// othersMove reports whether moves of other workspaces wait. An error is ignored, since
// the next statement reports it.
func (f *Flows) othersMove(ctx context.Context, ws uuid.UUID) (wait bool) {
	_ = f.pool.QueryRow(ctx, `
		select exists (select from flow_moves where finished_at is null and retry_at <= now() and lease_until is null and workspace_id <> $1)`,
		ws).Scan(&wait)
	return wait
}

// MoveOnce claims an open move and carries it out chunk by chunk, round robin with those of
// other workspaces. It returns the number of enrollments that it took over. The move is finished when
// a query finds none left.
func (f *Flows) MoveOnce(ctx context.Context) (n int, err error) {
	n, _, err = f.moveOnce(ctx)
	return n, err
}

// moveOnce is MoveOnce. next reports that another move may be claimed at once: this one has moved
// enrollments, has ended, or rests.
func (f *Flows) moveOnce(ctx context.Context) (n int, next bool, err error) {
	o, err := f.claimMove(ctx)
	if err != nil || o == nil {
		return 0, false, err
	}
	defer func() {
		rest := time.Duration(0)
		if err != nil && ctx.Err() == nil {
			rest = restAfterError
		}
		if enrollment.Locked(err) {
			next, err = true, nil // those of others go on meanwhile
		}
		err = errors.Join(err, f.releaseMove(*o, rest))
	}()
	begun := time.Now()
	left, err := f.leftBehind(ctx, *o, chunksAtOnce*f.cfg.Chunk)
	if err != nil {
		return 0, false, err
	}
	if len(left) == 0 {
		return 0, true, f.finishMove(ctx, *o)
	}
	for chunk := range slices.Chunk(left, f.cfg.Chunk) {
		slices.SortFunc(chunk, func(a, b pgtype.UUID) int { return bytes.Compare(a.Bytes[:], b.Bytes[:]) })
		f.hook.At("move: found")
		done, ours, err := f.moveAway(ctx, o, chunk)
		n += done
		if err != nil || !ours {
			return n, n > 0, err
		}
		if time.Since(begun) > f.moveTime && f.othersMove(ctx, o.ws) {
			return n, true, nil
		}
	}
	if n == 0 && o.stranded > 0 { // unreachable by the guards: every node is mapped
		f.log.Error("a move cannot move enrollments", "flow_id", o.flow, "move_id", o.id, "enrollments", o.stranded)
		return 0, true, f.finishMove(ctx, *o)
	}
	return n, n > 0, nil
}

// leftBehind finds enrollments that are not moved yet, by version: few chunks have those of several.
func (f *Flows) leftBehind(ctx context.Context, o moveLease, limit int) ([]pgtype.UUID, error) {
	rows, _ := f.pool.Query(ctx, `
		select e.id from (
			select e.id, e.version from unnest('{0,1,2,3}'::smallint[]) as t (shard) cross join lateral (
				select id, version from enrollments
				where workspace_id = $1 and shard = t.shard and flow_id = $2 and resume_at is not null and ($3::int is null or version <> $3)
				order by resume_at limit $4
			) e limit $4
		) e order by e.version`, o.ws, o.flow, o.to, limit)
	left, err := pgx.CollectRows(rows, pgx.RowTo[pgtype.UUID])
	if err != nil {
		return nil, fmt.Errorf("find enrollments to move in flow %s: %w", o.flow, err)
	}
	return left, nil
}

// moveAway moves one chunk in one transaction. ours is false if the lease expired, or a
// later move has replaced this one.
func (f *Flows) moveAway(ctx context.Context, o *moveLease, chunk []pgtype.UUID) (n int, ours bool, err error) {
	var moved relocated
	others := f.othersMove(ctx, o.ws)
	err = enrollment.Transact(ctx, f.pool, func(tx pgx.Tx) error {
		moved = relocated{by: o.by()}
		if err := enrollment.WaitBriefly(ctx, tx, others); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `
			update flow_moves set lease_until = now() + $5
			where workspace_id = $1 and flow_id = $2 and id = $3 and leased_by = $4 and finished_at is null`, o.ws, o.flow, o.id, o.token,
			f.cfg.Lease)
		if err != nil {
			return err
		}
		if ours = tag.RowsAffected() == 1; !ours {
			return nil
		}
		if moved.resumedAt, err = enrollment.ReleasingSince(ctx, tx, o.ws, o.flow); err != nil {
			return err
		}
		found, err := lockActive(ctx, tx, o.ws, chunk, o.to)
		if err != nil {
			return err
		}
		slices.SortFunc(found, func(a, b activeRow) int { return a.version - b.version }) // each version is read once
		begun := time.Now()
		for _, w := range found {
			if o.exit == "" && w.version != o.fromVersion && moved.moves+moved.exits > 0 && time.Since(begun) > f.routeTime {
				break // those of further versions are found again
			}
			action, err := f.actionUnder(ctx, tx, o, w)
			if err != nil {
				return err
			}
			moved.add(w, action, o.to, o.exit)
		}
		f.hook.At("move: locked")
		if err := moved.write(ctx, tx, o.ws, o.flow); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			update flow_moves set moved = moved + $5, exited = exited + $6
			where workspace_id = $1 and flow_id = $2 and id = $3 and leased_by = $4`, o.ws, o.flow, o.id, o.token, moved.moves, moved.exits)
		return err
	})
	if err != nil {
		return 0, ours, fmt.Errorf("move %d enrollments of flow %s: %w", len(chunk), o.flow, err)
	}
	o.stranded += moved.stranded
	f.metrics.Steps.WithLabelValues(enrollment.StepMoved).Add(float64(moved.moves))
	f.metrics.Steps.WithLabelValues(enrollment.StepExited).Add(float64(moved.exits))
	return moved.moves + moved.exits, ours, nil
}

// actionUnder is the action of a move on one enrollment.
func (f *Flows) actionUnder(ctx context.Context, tx pgx.Tx, o *moveLease, w activeRow) (graph.Action, error) {
	if o.exit != "" {
		return graph.Action{Kind: graph.Exits}, nil
	}
	if o.target == nil {
		if err := readInto(ctx, tx, o, *o.to, &o.target); err != nil {
			return graph.Action{}, err
		}
	}
	if o.from == nil || o.fromVersion != w.version {
		if err := readInto(ctx, tx, o, w.version, &o.from); err != nil {
			return graph.Action{}, err
		}
		o.fromVersion = w.version
	}
	return graph.ActionFor(o.from, w.node, o.target, o.nodes), nil
}

// readInto reads a definition. It waits for no processor: the moves of all workspaces follow each other.
func readInto(ctx context.Context, tx pgx.Tx, o *moveLease, version int, to **graph.Definition) error {
	text, err := readText(ctx, tx, o.ws, o.flow, version)
	if err == nil {
		*to, err = graph.Read(text)
	}
	return err
}

// activeRow is an enrollment that is locked to be moved.
type activeRow struct {
	id       pgtype.UUID
	version  int
	node     string
	step     int
	shard    int16
	entering bool // its wait has not begun
}

// Conditions that a move and a plan share, on an enrollment e. A wait that has not begun
// has no time to change. A matched wait keeps its time unless it begins anew. Whether an
// enrollment is due does not matter: one that became due in a pause is moved like any
// other.
const (
	entering   = `waiting_since is null`
	hasMatched = `matched_event is not null`
)

// lockActive locks the active enrollments that are not in version but, in the order of
// their ids. A worker that has read them has moved them before, or finds them moved.
func lockActive(ctx context.Context, tx pgx.Tx, ws uuid.UUID, ids []pgtype.UUID, but *int) ([]activeRow, error) {
	rows, _ := tx.Query(ctx, `
		select e.id, e.version, e.node, e.step, e.shard, e.`+entering+` from `+enrollment.OneByOne+` (
			select id, version, node, step, shard, waiting_since from enrollments e
			where e.workspace_id = $1 and e.id = r.id and e.ended_at is null and ($3::int is null or e.version <> $3) for update
		) e`, ws, ids, but)
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (w activeRow, err error) {
		err = row.Scan(&w.id, &w.version, &w.node, &w.step, &w.shard, &w.entering)
		return w, err
	})
	return found, lemma.Wrap(err, "lock enrollments")
}

// relocated are the rows of enrollments that a move or a request changes, column by
// column.
type relocated struct {
	enrollment.StepRows
	by      string // publish or manual
	note    string // the note of a manual change
	request string // the request of a manual change

	ids, gone []pgtype.UUID
	versions  []int32
	nodes     []string
	timers    []string
	shifts    []float64
	registers []bool
	reasons   []string

	// Set during a release of enrollments that were due in a pause: the moved ones keep
	// their order in it, and arrive on their new node now.
	resumedAt *time.Time

	moves, exits, stranded int
	counts                 map[int16]enrollment.NodeCounts
}

// add records the action on one enrollment. A stranded one stays.
func (r *relocated) add(w activeRow, f graph.Action, to *int, exit string) {
	data := []any{"from_version", w.version, "from_node", w.node, "by", r.by}
	if r.note != "" {
		data = append(data, "note", r.note)
	}
	if r.request != "" {
		data = append(data, enrollment.StepRequest, r.request)
	}
	switch f.Kind {
	case graph.Exits:
		if exit == "" {
			exit = enrollment.ExitReplaced
		}
		r.gone, r.reasons = append(r.gone, w.id), append(r.reasons, exit)
		r.log(w, w.version, w.node, enrollment.StepExited, exit, append(data, "reason", exit))
		r.exits++
	case graph.Moves:
		timer, shift := f.Timer, f.Shift
		if w.entering && w.node != "" {
			timer, shift = graph.TimerRestarted, 0
		}
		r.ids, r.versions, r.nodes = append(r.ids, w.id), append(r.versions, int32(*to)), append(r.nodes, f.Node)
		r.timers, r.shifts = append(r.timers, timer), append(r.shifts, shift.Seconds())
		r.registers = append(r.registers, f.RegisterAgain && !w.entering)
		if shift != 0 {
			data = append(data, "shifted_seconds", shift.Seconds())
		}
		r.log(w, *to, f.Node, enrollment.StepMoved, "", append(data, "timer", timer))
		r.moves++
	default:
		r.stranded++
	}
}

func (r *relocated) log(w activeRow, version int, node, event, reason string, data []any) {
	r.Add(w.id.Bytes, w.step+1, version, node, event, enrollment.StepData(data...))
	if r.counts == nil {
		r.counts = map[int16]enrollment.NodeCounts{}
	}
	if r.counts[w.shard] == nil {
		r.counts[w.shard] = enrollment.NodeCounts{}
	}
	r.counts[w.shard][enrollment.NodeEvent{Version: w.version, Node: w.node, Event: event, Next: reason}]++
}

// write moves the enrollments. They are locked, and the compare-and-set on the step of a
// worker that read them before fails. A shorter wait ends now at the earliest: the nodes
// behind it count their times from its end.
func (r *relocated) write(ctx context.Context, tx pgx.Tx, ws, flow uuid.UUID) error {
	batch := &pgx.Batch{}
	r.Queue(batch, ws)
	for shard := range int16(enrollment.Shards) {
		r.counts[shard].Queue(batch, ws, flow, shard)
	}
	if len(r.ids) > 0 {
		batch.Queue(`
			update enrollments e set version = r.version, node = r.node, step = e.step + 1, moved = true,
				resume_at = case
					when r.timer = 'restarted' or r.register then least(now(), case when e.resume_at <= $9::timestamptz then e.resume_at end)
					when e.`+hasMatched+` then e.resume_at else greatest(e.resume_at + make_interval(secs => r.shift), least(e.resume_at, now())) end,
				waiting_since = case when r.timer = 'restarted' then null else e.waiting_since end,
				first_due_at = case
					when r.timer = 'restarted' then case when e.resume_at <= $9 then now() end
					when e.`+hasMatched+` then e.first_due_at else e.first_due_at + make_interval(secs => greatest(r.shift, 0)) end,
				awaits = case when r.timer = 'restarted' then null else e.awaits end,
				matched_event = case when r.timer = 'restarted' then null else e.matched_event end,
				answer_step = case when r.timer = 'restarted' then null else e.answer_step end,
				failures = case when `+waitsAnew+` then 0 else e.failures end,
				blocked_reason = case when `+waitsAnew+` then null else e.blocked_reason end
			from (select $1::uuid as workspace_id, r.* from unnest($2::uuid[], $3::int[], $4::text[], $5::text[], $6::float8[], $7::boolean[])
				as r (id, version, node, timer, shift, register) limit $8) r
			where e.workspace_id = r.workspace_id and e.id = r.id and e.ended_at is null`, ws, r.ids, r.versions, r.nodes, r.timers, r.shifts,
			r.registers, len(r.ids), r.resumedAt)
	}
	if len(r.gone) > 0 {
		batch.Queue(`
			update enrollments e set status = 'exited', exit_reason = r.reason, step = e.step + 1, ended_at = now(), resume_at = null,
				waiting_since = null, first_due_at = null, awaits = null, matched_event = null, answer_step = null, blocked_reason = null, failures = 0
			from (select $1::uuid as workspace_id, r.* from unnest($2::uuid[], $3::text[]) as r (id, reason) limit $4) r
			where e.workspace_id = r.workspace_id and e.id = r.id and e.ended_at is null`, ws, r.gone, r.reasons, len(r.gone))
	}
	if batch.Len() == 0 {
		return nil
	}
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("write moves: %w", err)
	}
	return enrollment.LowerBounds(ctx, tx, enrollment.ShardsOf(ws, flow))
}

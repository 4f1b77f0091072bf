package flows

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
	"lemma/flows/graph"
	"lemma/notifications"
	"lemma/webhooks"
)

// errHeld: the flow was paused or archived since its enrollments were read.
var errHeld = errors.New("the flow is held")

// commit writes what has come of travellers, in one transaction: each enrollment
// that still stands where it was read is moved, and what its steps say is written
// for it and for no other. One that was moved by another meanwhile is left alone.
// The update that moves them also locks them, in the order of their ids; only
// before a wait for an event they are locked first.
func (f *Flows) commit(ctx context.Context, ws, flow uuid.UUID, turn int16, all []*traveller) (moved []*traveller, err error) {
	err = f.transact(ctx, func(tx pgx.Tx) (err error) {
		if err = f.lockMoving(ctx, tx, ws, flow); err != nil {
			return err
		}
		there := all
		if slices.ContainsFunc(all, (*traveller).entersWait) {
			if there, err = f.lockThere(ctx, tx, ws, all); err != nil {
				return err
			}
			if err = lookOnce(ctx, tx, there); err != nil {
				return err
			}
		}
		if moved, err = moveThere(ctx, tx, ws, there); err != nil || len(moved) == 0 {
			return err
		}
		f.at("locked")
		if err = f.sendAll(ctx, tx, ws, moved); err != nil {
			return err
		}
		if err = f.sayAll(ctx, tx, ws, moved); err != nil {
			return err
		}
		f.at("acted")
		return writeSteps(ctx, tx, ws, flow, turn, moved)
	})
	if err != nil {
		return nil, err
	}
	f.metrics.overtaken.Add(float64(len(all) - len(moved)))
	return moved, nil
}

// lockMoving holds a flow in a status in which people move: a pause waits for
// this transaction, or this one finds it paused.
func (f *Flows) lockMoving(ctx context.Context, tx pgx.Tx, ws, flow uuid.UUID) error {
	if err := lockForPeople(ctx, tx, flow); err != nil {
		return err
	}
	var status Status
	err := tx.QueryRow(ctx, `select status from flows where workspace_id = $1 and id = $2 for share`, ws, flow).Scan(&status)
	switch {
	case err != nil && !errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("lock flow %s: %w", flow, err)
	case status != Live && status != Draining:
		return errHeld
	}
	return nil
}

// lockThere locks the enrollments, in the order of their ids like everywhere,
// and answers those that stand where they were read and are due: the
// compare-and-set of node and step. Since they are locked, nobody moves them
// before we do.
func (f *Flows) lockThere(ctx context.Context, tx pgx.Tx, ws uuid.UUID, all []*traveller) ([]*traveller, error) {
	of := index(all)
	rows, err := tx.Query(ctx, `
		select e.id, e.node, e.step, e.waiting_since is not null, e.heard, coalesce(e.answer_step, 0) from `+oneByOne+` (
			select * from enrollments e where e.workspace_id = $1 and e.id = r.id and e.ended_at is null and e.resume_at <= now() for update
		) e`, ws, idsOf(all))
	if err != nil {
		return nil, fmt.Errorf("lock enrollments: %w", err)
	}
	var there []*traveller
	var id, heard pgtype.UUID
	var at place
	var waiting bool
	var answer int
	_, err = pgx.ForEachRow(rows, []any{&id, &at.node, &at.step, &waiting, &heard, &answer}, func() error {
		t := of[id.Bytes]
		if t.from == at && t.fromWaiting == waiting && heard.Valid == t.fromHeard && answer == t.read.answerStep {
			there = append(there, t)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("lock enrollments: %w", err)
	}
	return there, nil
}

// oneByOne are the ids of $2 in their order, each looked up by itself: by the
// whole primary key, which leaves a planner no choice. Of an any() it may think,
// while it has no statistics, that reading everybody is cheaper, and remember
// that. For the same reason whoever is looked up by his id is on the way when
// ended_at is null: status = 'active' would bring other indexes to mind.
const oneByOne = `(select unnest($2::uuid[]) as id order by 1) r cross join lateral`

// letters are the notifications of one origin and one node.
type letters struct {
	origin uuid.UUID
	node   string
	*send
	*route
}

// sendAll writes the notifications of all steps: a batch for each node, and for
// each month in which people enrolled.
func (f *Flows) sendAll(ctx context.Context, tx pgx.Tx, ws uuid.UUID, moved []*traveller) error {
	written := map[letters][]notifications.Recipient{}
	for _, t := range moved {
		for _, s := range t.sent {
			l := letters{OriginOf(t.flow, t.id), s.node, s.send, t.route}
			written[l] = append(written[l], notifications.Recipient{Key: NodeKey(t.id, s.node), EnrollmentID: t.id, ProfileKey: t.key,
				Address: s.address, Payload: s.payload, Skip: s.skip})
		}
	}
	if len(written) == 0 {
		return nil
	}
	order := slices.SortedFunc(maps.Keys(written), func(a, b letters) int {
		return cmp.Or(bytes.Compare(a.origin[:], b.origin[:]), bytes.Compare(a.content[:], b.content[:]))
	})
	for _, l := range order {
		if err := f.prepare(ctx, tx, ws, l); err != nil {
			return err
		}
		chunk := notifications.Chunk{WorkspaceID: ws, OriginID: l.origin, ProviderID: l.provider, ContentID: l.content, Run: 1,
			MaxAttempts: l.maxAttempts, BatchSize: f.cfg.Lot, Recipients: written[l], Journeys: true}
		if l.expiresAfter > 0 {
			until := moved[0].now.Add(l.expiresAfter) // the database's clock
			chunk.ExpiresAt = &until
		}
		if _, err := f.ledger.Insert(ctx, tx, chunk); err != nil {
			return err
		}
	}
	return nil
}

// prepare writes what a node's batches are made from, and whose origin it is,
// unless somebody has. A flow that has sent before costs one look.
func (f *Flows) prepare(ctx context.Context, tx pgx.Tx, ws uuid.UUID, l letters) error {
	n, _ := l.Node(l.node)
	var from graph.From
	if n.From != nil {
		from = *n.From
	}
	envelope := lemma.Envelope{FromEmail: from.Email, ReplyTo: n.ReplyTo}.Canonical() // the definition has it as its author wrote it
	headers := n.Headers
	if headers == nil {
		headers = map[string]string{}
	}
	batch := &pgx.Batch{}
	batch.Queue(`
		insert into flow_origins (workspace_id, origin_id, flow_id) values ($1, $2, $3)
		on conflict (workspace_id, origin_id) do nothing`, ws, l.origin, l.flow)
	batch.Queue(`
		insert into contents (workspace_id, id, channel, template_id, template_version, from_name, from_email, reply_to, headers, flow_id, node)
		values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) on conflict (workspace_id, id) do nothing`,
		ws, l.content, lemma.Email, l.template, l.templateAt, from.Name, envelope.FromEmail, envelope.ReplyTo, headers, l.flow, l.node)
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("write content of node %s: %w", l.node, err)
	}
	return nil
}

// sayAll writes the webhooks' messages of all steps.
func (f *Flows) sayAll(ctx context.Context, tx pgx.Tx, ws uuid.UUID, moved []*traveller) error {
	var all []webhooks.Message
	for _, t := range moved {
		for _, s := range t.said {
			all = append(all, webhooks.Message{WorkspaceID: ws, ID: NodeKey(t.id, s.node), EndpointID: s.endpoint, Body: s.body, EnrollmentID: t.id, Step: s.step})
		}
	}
	if len(all) == 0 {
		return nil
	}
	return f.webhooks.Write(ctx, tx, all)
}

// writeSteps appends the steps of those who were moved, and counts them.
func writeSteps(ctx context.Context, tx pgx.Tx, ws, flow uuid.UUID, turn int16, moved []*traveller) error {
	var s steps
	var r refusals
	counts := passed{}
	for _, t := range moved {
		for _, l := range t.log {
			s.add(t.id, l.step, t.version, l.node, l.event, l.data)
			counts[passedKey{t.version, l.node, l.event, l.way}]++
		}
		if t.status == statusRefused {
			r.addRefused(t)
		}
	}
	batch := &pgx.Batch{}
	s.queue(batch, ws)
	r.queue(batch, ws)
	counts.queue(batch, ws, flow, turn)
	if batch.Len() == 0 {
		return nil
	}
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("write steps of enrollments: %w", err)
	}
	return nil
}

// passed counts how many passed which node, and how.
type passed map[passedKey]int64

type passedKey struct {
	version int
	node    string
	event   string
	way     string
}

// queue adds them to the books, in the order of their key. The turn's holder is
// alone with these rows, as long as nobody took the turn from him.
func (p passed) queue(batch *pgx.Batch, ws, flow uuid.UUID, turn int16) {
	keys := slices.SortedFunc(maps.Keys(p), func(a, b passedKey) int {
		return cmp.Or(cmp.Compare(a.version, b.version), strings.Compare(a.node, b.node), strings.Compare(a.event, b.event), strings.Compare(a.way, b.way))
	})
	if len(keys) == 0 {
		return
	}
	versions, nodes, events, ways, counts := make([]int32, len(keys)), make([]string, len(keys)), make([]string, len(keys)), make([]string, len(keys)), make([]int64, len(keys))
	for i, k := range keys {
		versions[i], nodes[i], events[i], ways[i], counts[i] = int32(k.version), k.node, k.event, k.way, p[k]
	}
	batch.Queue(`
		insert into flow_node_counts (workspace_id, flow_id, turn, version, node, event, next, passed)
		select $1, $2, $3, r.* from unnest($4::int[], $5::text[], $6::text[], $7::text[], $8::bigint[]) as r
		on conflict (workspace_id, flow_id, version, node, event, next, turn) do update set passed = flow_node_counts.passed + excluded.passed`,
		ws, flow, turn, versions, nodes, events, ways, counts)
}

// moveThere moves those who stand where they were read and are due, and answers
// them: the compare-and-set of node and step.
func moveThere(ctx context.Context, tx pgx.Tx, ws uuid.UUID, there []*traveller) (moved []*traveller, err error) {
	if len(there) == 0 {
		return nil, nil
	}
	there = slices.SortedFunc(slices.Values(there), func(a, b *traveller) int { return bytes.Compare(a.id[:], b.id[:]) }) // locks are taken in this order
	batch, of := &pgx.Batch{}, index(there)
	queueMoves(batch, ws, there).Query(func(rows pgx.Rows) error {
		var id pgtype.UUID
		_, err := pgx.ForEachRow(rows, []any{&id}, func() error {
			moved = append(moved, of[id.Bytes])
			return nil
		})
		return err
	})
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return nil, fmt.Errorf("move enrollments: %w", err)
	}
	return moved, nil
}

// queueMoves moves the enrollments. The limit cuts nothing off: of a limit that
// it does not know a planner expects little, and so it looks enrollments up one
// by one, however few it believes there are; and by the whole primary key, since
// the workspace is a column of what it looks them up by. As a parameter it would
// do for a condition of its own, which looks as good while the table is empty.
// Every update of many enrollments is written like that. Who is refused frees
// his uniqueness key: the trigger may come again when he can be let in. What was
// heard belongs to one wait: whoever left that has heard nothing.
func queueMoves(batch *pgx.Batch, ws uuid.UUID, moved []*traveller) *pgx.QueuedQuery {
	n := len(moved)
	ids, fromNodes, fromSteps := make([]pgtype.UUID, n), make([]string, n), make([]int32, n)
	fromWaiting, fromHeard, fromAnswers := make([]bool, n), make([]bool, n), make([]int32, n)
	nodes, toSteps, statuses, reasons := make([]string, n), make([]int32, n), make([]string, n), make([]string, n)
	resume, since := make([]pgtype.Timestamptz, n), make([]pgtype.Timestamptz, n)
	heard, due := make([]pgtype.UUID, n), make([]pgtype.Timestamptz, n)
	awaits, troubles, failures, answers := make([]string, n), make([]string, n), make([]int16, n), make([]int32, n)
	for i, t := range moved {
		ids[i], fromNodes[i], fromSteps[i] = wire(t.id), t.from.node, int32(t.from.step)
		fromWaiting[i], fromHeard[i], fromAnswers[i] = t.fromWaiting, t.fromHeard, int32(t.read.answerStep)
		nodes[i], toSteps[i], statuses[i], reasons[i] = t.node, int32(t.step), t.status, t.reason
		resume[i] = pgtype.Timestamptz{Time: t.until, Valid: t.status == Active}
		if t.since != nil {
			since[i] = pgtype.Timestamptz{Time: *t.since, Valid: true}
		}
		if t.heard != nil {
			heard[i] = wire(*t.heard)
		}
		due[i] = pgtype.Timestamptz{Time: t.arrived, Valid: t.trouble != "" || t.heard != nil || t.overdue}
		awaits[i], troubles[i], failures[i], answers[i] = t.waitsFor, t.trouble, int16(min(t.failures, 1000)), int32(t.answerStep)
	}
	return batch.Queue(`
		update enrollments e set node = r.node, step = r.step, status = r.status, exit_reason = nullif(r.reason, ''), resume_at = r.resume_at,
			waiting_since = r.since, awaits = nullif(r.awaits, ''), heard = r.heard, answer_step = nullif(r.answer_step, 0), due_since = r.due_since,
			trouble = nullif(r.trouble, ''), failures = r.failures,
			ended_at = case when r.status <> 'active' then now() end,
			uniqueness_key = case when r.status = 'refused' then e.id else e.uniqueness_key end
		from (select $1::uuid as workspace_id, r.* from unnest($2::uuid[], $3::text[], $4::int[], $5::text[], $6::int[], $7::text[], $8::text[], $9::timestamptz[], $10::timestamptz[],
			$11::text[], $12::text[], $13::smallint[], $14::uuid[], $15::timestamptz[], $16::int[], $18::boolean[], $19::boolean[], $20::int[])
			as r (id, from_node, from_step, node, step, status, reason, resume_at, since, awaits, trouble, failures, heard, due_since, answer_step,
				from_waiting, from_heard, from_answer) limit $17) r
		where e.workspace_id = r.workspace_id and e.id = r.id and e.node = r.from_node and e.step = r.from_step and e.ended_at is null and e.resume_at <= now()
			and (e.waiting_since is not null) = r.from_waiting and (e.heard is not null) = r.from_heard and coalesce(e.answer_step, 0) = r.from_answer
		returning e.id`,
		ws, ids, fromNodes, fromSteps, nodes, toSteps, statuses, reasons, resume, since, awaits, troubles, failures, heard, due, answers, n, fromWaiting, fromHeard, fromAnswers)
}
